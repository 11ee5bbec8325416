"""Which commands are plainly destructive, and which only look like it."""

from __future__ import annotations

import pytest

from nanobot.shell.exec import destruction_in


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "rm -rfv /*",
        "rm -r -f ~",
        "sudo rm --recursive --force /home",
        "rm -rf -- /",
        "rm -rf $HOME",
        'rm -rf "${HOME}/"',
        "rm -rf ~/*",
        "/bin/rm -rf /usr",
        "cd /tmp && rm -rf /etc",
        "ls\nrm -rf /\n",
        "if true; then rm -rf /; fi",
        "(rm -rf /)",
        "bash -c 'rm -rf /'",
        "FOO=1 rm -fr /var/",
        "find / -delete",
        "chmod -R 777 /",
        "chown -R nobody /usr",
        "mkfs.ext4 /dev/sdb1",
        "wipefs -a /dev/sda",
        "dd if=/dev/zero of=/dev/nvme0n1 bs=1M",
        "cat image > /dev/sda",
        ":(){ :|:& };:",
        "bomb() { bomb | bomb & }; bomb",
        "shutdown -h now",
        "sudo reboot",
        "systemctl poweroff",
        "cat <<EOF > note\nhello\nEOF\nrm -rf /",
    ],
)
def test_what_nobody_can_mean_is_recognised(command: str) -> None:
    assert destruction_in(command)


@pytest.mark.parametrize(
    "command",
    [
        "git log --format=%H",
        'echo "format c:"',
        "rm -rf build/",
        "rm -rf ./*",
        "rm -rf /tmp/build",
        "rm -rf ~/projects/old",
        "rm -f /etc-backup.txt",
        'echo "rm -rf /"',
        "git commit -m 'do not rm -rf / ; reboot'",
        "grep -rn shutdown src/",
        "grep -r 'rm -rf /' .",
        "man mkfs",
        "dd if=/dev/zero of=disk.img bs=1M count=10",
        "echo x > /dev/null 2>&1",
        "cat /dev/urandom | head -c 10 > seed",
        "systemctl status reboot.target",
        "systemctl --user restart poweroff-watch",
        "shutdown -c",
        "reboot --help",
        "cat > notes.md <<'EOF'\nNever run\nrm -rf /\nor reboot\nEOF",
        "# rm -rf /\nls",
        "find . -name '*.tmp' -delete",
        "find / -name core -delete",
        "chmod -R u+w node_modules",
        "python3 -c 'import os\nprint(os.getcwd())'",
        "f() { echo hi; }; f",
        "echo it's",
        "",
    ],
)
def test_what_only_looks_like_it_is_left_alone(command: str) -> None:
    assert destruction_in(command) is None


@pytest.mark.parametrize(
    "command",
    ["<<A\n" * 200_000, "a" * 1_000_000, "(" * 1_000_000, "''" * 500_000, "a()" * 300_000],
)
@pytest.mark.timeout(5)
def test_judging_takes_little_time_however_long_the_command(command: str) -> None:
    assert destruction_in(command) is None
