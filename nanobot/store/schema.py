"""The tables of the state database, as an ordered list of migrations."""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    # 1: inbox, outbox with one row a message piece, sessions and their log
    """
    CREATE TABLE inbox (
        seq         INTEGER PRIMARY KEY AUTOINCREMENT,
        id          TEXT NOT NULL UNIQUE,
        session     TEXT NOT NULL,
        channel     TEXT NOT NULL,
        payload     TEXT NOT NULL,
        state       TEXT NOT NULL DEFAULT 'pending',
        attempts    INTEGER NOT NULL DEFAULT 0,
        not_before  REAL,
        told        INTEGER NOT NULL DEFAULT 0,
        error       TEXT,
        received_at REAL NOT NULL,
        settled_at  REAL
    );
    CREATE INDEX inbox_pending ON inbox (seq) WHERE state = 'pending';
    CREATE INDEX inbox_dead ON inbox (seq) WHERE state = 'dead';
    CREATE INDEX inbox_settled ON inbox (settled_at) WHERE settled_at IS NOT NULL;

    CREATE TABLE outbox (
        seq         INTEGER PRIMARY KEY AUTOINCREMENT,
        id          TEXT NOT NULL UNIQUE,
        session     TEXT NOT NULL,
        channel     TEXT NOT NULL,
        target      TEXT NOT NULL,
        inbound_id  TEXT,
        payload     TEXT NOT NULL,
        state       TEXT NOT NULL DEFAULT 'pending',
        attempts    INTEGER NOT NULL DEFAULT 0,
        not_before  REAL,
        error       TEXT,
        created_at  REAL NOT NULL,
        expires_at  REAL,
        settled_at  REAL
    );
    CREATE INDEX outbox_pending ON outbox (channel, seq) WHERE state = 'pending';
    CREATE INDEX outbox_dead ON outbox (seq) WHERE state = 'dead';
    CREATE INDEX outbox_settled ON outbox (settled_at) WHERE settled_at IS NOT NULL;

    CREATE TABLE piece (
        outbound_id TEXT NOT NULL,
        number      INTEGER NOT NULL,
        payload     TEXT NOT NULL,
        state       TEXT NOT NULL DEFAULT 'queued',
        platform_id TEXT,
        PRIMARY KEY (outbound_id, number)
    ) WITHOUT ROWID;

    CREATE TABLE session (
        key         TEXT PRIMARY KEY,
        created_at  REAL NOT NULL,
        updated_at  REAL NOT NULL,
        live_from   INTEGER NOT NULL DEFAULT 0,
        settings    TEXT NOT NULL DEFAULT '{}'
    ) WITHOUT ROWID;

    CREATE TABLE log (
        seq         INTEGER PRIMARY KEY AUTOINCREMENT,
        session     TEXT NOT NULL,
        kind        TEXT NOT NULL,
        inbound_id  TEXT NOT NULL,
        principal   TEXT NOT NULL,
        trust       TEXT NOT NULL,
        at          REAL NOT NULL,
        payload     TEXT NOT NULL
    );
    CREATE INDEX log_session ON log (session, seq);
    """,
    # 2: what model calls used; ``cost`` in US dollars is that of the ``priced`` calls
    """
    CREATE TABLE usage (
        day         TEXT NOT NULL,
        session     TEXT NOT NULL,
        model       TEXT NOT NULL,
        provider    TEXT NOT NULL,
        calls       INTEGER NOT NULL,
        input       INTEGER NOT NULL,
        output      INTEGER NOT NULL,
        cached      INTEGER NOT NULL,
        cost        REAL NOT NULL,
        priced      INTEGER NOT NULL,
        PRIMARY KEY (day, session, model, provider)
    ) WITHOUT ROWID;
    CREATE INDEX usage_session ON usage (session);
    """,
    # 3: jobs' run state and run records, and the chat the owner last wrote in
    """
    CREATE TABLE job_state (
        job         TEXT PRIMARY KEY,
        schedule    TEXT NOT NULL,
        due         REAL,
        last_due    REAL
    ) WITHOUT ROWID;

    CREATE TABLE job_run (
        id          TEXT PRIMARY KEY,
        job         TEXT NOT NULL,
        due         REAL NOT NULL,
        started_at  REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX job_run_job ON job_run (job, started_at);

    CREATE TABLE last_chat (
        one         INTEGER PRIMARY KEY CHECK (one = 1),
        channel     TEXT NOT NULL,
        chat_id     TEXT NOT NULL,
        thread_id   TEXT
    );
    """,
    # 4: what gave way is found without a look at the rest; tokens of a model to one estimated
    """
    CREATE INDEX log_gave_way ON log (session, seq) WHERE kind = 'gave_way';
    CREATE TABLE calibration (
        model       TEXT PRIMARY KEY,
        factor      REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    # 5: how far each session is digested into HISTORY.md, and each batch of its paragraphs
    """
    CREATE TABLE digest (
        session     TEXT PRIMARY KEY,
        upto        INTEGER NOT NULL DEFAULT 0,
        failures    INTEGER NOT NULL DEFAULT 0,
        not_before  REAL,
        error       TEXT,
        at          REAL
    ) WITHOUT ROWID;

    CREATE TABLE digest_batch (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL,
        last        INTEGER NOT NULL,
        at          REAL NOT NULL,
        place       INTEGER NOT NULL,
        text        TEXT NOT NULL,
        edits       TEXT NOT NULL,
        keeps_from  INTEGER,
        trust       TEXT NOT NULL,
        is_written  INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE INDEX digest_batch_session ON digest_batch (session, last);
    CREATE INDEX digest_batch_open ON digest_batch (session) WHERE is_written = 0;
    """,
)
