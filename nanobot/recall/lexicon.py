"""Everyday words: irregular forms, words that say nothing in a query, words of one meaning."""

from __future__ import annotations

_FORMS = """
arise arose arisen; awake awoke awoken; be was were been; bear bore born borne; beat beaten;
become became; begin began begun; bend bent; bite bit bitten; bleed bled; blow blew blown; break
broke broken; breed bred; bring brought; build built; burn burnt; buy bought; catch caught; choose
chose chosen choice; cling clung; come came; creep crept; deal dealt; dig dug; decide decision;
describe description; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat
ate eaten; explain explanation; fall fell fallen; feed fed; feel felt; fight fought; flee fled;
fly flew flown flight; forbid forbade forbidden; forget forgot forgotten; forgive forgave
forgiven; freeze froze frozen; get got gotten; give gave given; go went gone; grow grew grown
growth; hang hung; have had; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know
knew known knowledge; lay laid; lead led; lean leant; learn learnt; lend lent; light lit; lose
lost loss; make made; mean meant; meet met; mistake mistook mistaken; pay paid; prefer preference;
prove proven; ride rode ridden; ring rang rung; rise rose risen; run ran; say said; see saw seen;
seek sought; sell sold sale; send sent; sew sewn; shake shook shaken; shine shone; shoot shot;
show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide
slid; smell smelt; speak spoke spoken speech; spell spelt; spend spent; spill spilt; spin spun;
spoil spoilt; stand stood; steal stole stolen theft; stick stuck; strike struck; subscribe
subscription; swear swore sworn; sweep swept; swell swollen; swim swam swum; swing swung; take
took taken; teach taught; tear tore torn; tell told; think thought; throw threw thrown; understand
understood; wake woke woken; wear wore worn; weave wove woven; weep wept; win won; wind wound;
withdraw withdrew withdrawn; write wrote written; analyse analysis analyze; arrive arrival; behave
behaviour behavior; marry marriage; move movement; refuse refusal; propose proposal; renew
renewal; respond response; weigh weight; receive receipt; child children; foot feet; goose geese;
man men; mouse mice; person people; tooth teeth; woman women; life lives; wife wives; knife
knives; wolf wolves; shelf shelves; half halves; colour color; favourite favorite; centre center;
theatre theater; grey gray; neighbour neighbor; flavour flavor; jewellery jewelry; programme
program; tyre tire; pyjamas pajamas; mum mom; organise organize; realise realize; traveller
traveler; cancelled canceled
"""
IRREGULAR: dict[str, str] = {
    form: forms[0]
    for forms in (line.split() for line in _FORMS.replace("\n", " ").split(";"))
    for form in forms[1:]
}
"""Each irregular form to the word it belongs to."""

_WHOLE = """
business witness harness fitness station nation mission ration passion fashion cushion department
apartment element document cement moment comment garment climate private chocolate family ugly
italy july reply supply apply news during morning evening something nothing anything everything
wedding building meeting ceiling clothing seed need feed speed weed bleed red bed hundred sacred
naked wicked this his gas bus thus yes lens always series species physics mathematics politics
economics athletics christmas texas paris wales
"""
WHOLE = frozenset(_WHOLE.split())
"""Words that only look inflected or derived."""

_STOP_WORDS = """
a about above after again all also am an and any anyone anything are as at be because been before
being between both but by can cannot could did do does doing don done down during each either else
ever every few for from further get give go had has have having he hence her here hers him his how
however i if in into is it its itself just let like ll many may maybe me might mine more most much
must my myself no nor not now of off on once one only or other ought our ours out over own please
really said same say shall she should since so some someone something such than that the their
theirs them then there these they thing things this those though through thus to too under until
up upon us use used ve very was we well were what whatever when where whether which while who whom
whose why will with within without would yes yet you your yours
ask asked discuss discussed mention mentioned recall remember remind reminded talk talked tell told
ich du er sie es wir ihr mir mich dir uns der die das den dem des ein eine einen einem einer und
oder aber auch auf aus bei bin bist ist sind war waren hat habe haben hatte hatten mit nach nicht
noch nur von vor wie was wann wo wer warum welche welcher welches wird werden zu zum zur im ins am
an als dass wenn uber unser unsere mein meine kein keine
le la les un une des du de et ou mais est sont etait je tu il elle nous vous ils elles mon ma mes
ton ta tes son sa ses notre nos votre vos que qui quoi quand comment pourquoi avec pour sur dans
par pas ne se ce cette ces au aux ai as avons avez ont
el los las unos unas y o pero es son era yo tu nosotros mi mis su sus nuestro nuestra con para por
en del al se lo que quien cuando donde como cual cuales hay ha he hemos han no si
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words of a question that do not say what is sought, folded; of several languages."""

_UNSPACED_STOP = """
什么时候 为什么 怎么样 什么 怎么 怎样 为何 哪里 哪儿 哪个 哪些 哪天 多少 几个 是谁 我们 你们
他们 她们 咱们 我的 你的 他的 她的 是不是 有没有 关于 之前 以前 上次 当时 记得 告诉 提到 说过
说的 讨论过 讨论 聊过 什麼時候 為什麼 什麼 怎麼 哪裡 哪個 我們 你們 關於 記得 說過 いつ どこ
だれ なぜ どうして どのように どう どの どれ なに 何を 何が 何と 何で いくら いくつ 私たち 私の
私は 僕の 僕は あなた について に関して でしたか ましたか ませんか ですか ますか でした ました
ません です ます でしょうか したか だった って という こと もの それ これ あれ その この あの
教えて 覚えて 언제 어디서 어디 누구 무엇을 무엇 어떻게 우리가 우리 내가 나의 제가 저의 대해 관해
"""
UNSPACED_STOP = tuple(_UNSPACED_STOP.split())
"""What the same words are in scripts without spaces; longest first where one begins another."""

_MEANINGS = """
mother mom mommy mama; father dad daddy papa; parent mother father mom dad; kid child son
daughter; sibling brother sister; grandmother grandma granny; grandfather grandpa; spouse wife
husband partner; partner girlfriend boyfriend fiance fiancee wife husband; relative family cousin
aunt uncle; movie film; photo picture pic photograph image snapshot; doctor physician dr gp;
dentist dental tooth; trip travel journey vacation holiday getaway; apartment flat condo; house
home; car vehicle automobile auto; bike bicycle cycling; job work career employment position;
employer company work; boss manager supervisor; colleague coworker teammate; salary pay wage
income earn; buy purchase order acquire; cost price expensive cheap fee pay charge; money budget
dollar euro pound; shop store supermarket market; begin start; end finish complete stop; sick ill
unwell; illness disease condition sickness; medicine medication drug pill prescription tablet;
allergy allergic intolerant intolerance; exercise workout gym training fitness; run jog marathon;
hobby interest pastime enjoy; like love enjoy prefer favourite fond; dislike hate avoid; food meal
dish cuisine eat; dinner supper meal; lunch meal; breakfast meal; restaurant cafe diner bistro;
drink beverage; pet dog cat puppy kitten; dog puppy; cat kitten; child baby; phone mobile cell
smartphone cellphone iphone; computer laptop pc desktop; email mail; internet wifi broadband;
television tv; fridge refrigerator; sofa couch; rubbish trash garbage; garden yard backyard; plant
flower; gift present; party celebration celebrate; birthday born; wedding marry engagement;
meeting appointment call; appointment visit checkup; book novel read; author writer; song music
album band; musician singer band; instrument guitar piano violin drum; sport football soccer
basketball tennis; team club; game play; school college university; study degree major course;
teacher professor instructor; student pupil; exam test; class course lesson workshop; paint
painting artwork art; draw drawing sketch; friend buddy pal; neighbour neighborhood; city town;
country nation; move relocate; live reside stay located; hotel hostel accommodation airbnb; flight
plane airline airport; train railway; road street; address street location; hospital clinic;
surgery operation; injury injure hurt; sad upset depressed unhappy; happy glad delighted excited;
worried anxious nervous stressed; angry annoyed mad; tired exhausted; scared afraid fear;
beautiful pretty gorgeous; big large huge; small little tiny; fast quick; often frequently
regular; repair fix mend; broken damaged defect; install set; choose pick select decide; decide
agree settle conclude; reject refuse decline rule; reason because why; problem issue trouble error
bug; plan intend schedule; goal aim ambition; recommend suggest advise advice recommendation
suggestion; help assist support; volunteer charity donate; race competition contest tournament;
win award prize medal; lose lost; raise fundraise; colour red blue green yellow black white;
password passphrase pin code; server host machine; deploy release ship rollout; config
configuration setting; database db postgres mysql sqlite; deadline due; invoice bill receipt;
insurance policy coverage; bank account; tax refund; rent lease landlord; loan mortgage; contract
agreement; religion church faith; name called nickname; age old year; attend go visit join; create
make build; grow plant; learn study; practice practise; cook bake recipe; bread bake; hike hiking
trail walk; camp camping tent; beach sea ocean coast; mountain hill peak; weather rain snow sunny;
boiler heater heating furnace; kitchen oven stove; leak drip; bathroom shower bath toilet; cup
mug; coat jacket; shoe sneaker boot; glasses spectacles; hair haircut hairdresser; therapist
counselor counseling therapy psychologist; research investigate study; discover find; own have;
transport commute bus train
"""
MEANINGS: tuple[tuple[str, ...], ...] = tuple(
    tuple(line.split()) for line in _MEANINGS.replace("\n", " ").split(";")
)
"""Groups whose first word may be said with one of the others, and these with the first."""
