from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint._private import Private, private_facts
from hardpoint._redaction import Redactor

PRIVATE = Private(
    folders={"/home/alicia": "<home>", "/home/alicia/env": "<venv>", "/srv/project": "<path-1>", "/data": "<cwd>"},
    temporary=("/tmp", "/var/tmp"),
    words={"alicia": "<user>", "gpu-box.corp.example": "<host>", "gpu-box": "<host>"},
    secrets=("planted-value", "planted"),
)


@pytest.fixture
def redactor() -> Redactor:
    """With a salt of its own, as every file has."""
    return Redactor(PRIVATE, salt=b"salt")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in planted-value out", "in <secret-1> out"),
        ("/home/alicia/x /home/alicia /home/alicia2/x", "<home>/x <home> /home/<user-1>/x"),
        ("/home/alicia/env/bin:/home/alicia/bin", "<venv>/bin:<home>/bin"),
        ("/host/home/alicia/x", "/host<home>/x"),
        ("/srv/project/lib/x.so", "<path-1>/lib/x.so"),
        ("/home/bob/x /Users/carol/x", "/home/<user-1>/x /Users/<user-2>/x"),
        ("at C:\\Users\\dave\\x", "at C:\\Users\\<user-1>\\x"),
        ("/data/x, /sys/data/x", "<cwd>/x, /sys/data/x"),
        ("'/tmp/a b'", "'<tmp>/a b'"),
        ("/tmp/x", "<tmp>/x"),
        ("/tmp", "<tmp>"),
        ("/tmp/one/two/x.so: no", "<tmp>/<folder-1>/<folder-2>/x.so: no"),
        ("/sys/tmp/one/x", "/sys/tmp/one/x"),
        ("Alicia on gpu-box (GPU-BOX.corp.example)", "<user> on <host> (<host>)"),
        ("malicia gpu-boxes", "malicia gpu-boxes"),
        ("mail alicia@corp.example now", "mail <mail-1> now"),
        ("MY_TOKEN=abc", "MY_TOKEN=<secret-1>"),
        ("export AWS_SECRET_ACCESS_KEY='a b c'; x", "export AWS_SECRET_ACCESS_KEY='<secret-1>'; x"),
        ("DB_PASSWORD = hunter2 rest", "DB_PASSWORD = <secret-1> rest"),
        ("X_PASS=a,Y_KEY=b", "X_PASS=<secret-1>,Y_KEY=<secret-2>"),
        ("password: hunter2", "password: <secret-1>"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "<secret-1>", "n": 1}'),
        ("client_secret=abc&n=1", "client_secret=<secret-1>&n=1"),
        ("run --token abc --n 1", "run --token <secret-1> --n 1"),
        ("run --api-key=abc", "run --api-key=<secret-1>"),
        ("https://me:pw@example.org/x", "https://<secret-1>@example.org/x"),
        ("https://abcdef@example.org/x", "https://<secret-1>@example.org/x"),
        ("https://example.org/x?token=abc&y=1", "https://example.org/x?token=<secret-1>&y=1"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer <secret-1>"),
        ("Authorization: Basic YWJjOmRlZg==", "Authorization: Basic <secret-1>"),
        ("https://svc:p@ssplan@host.example/x", "https://<secret-1>@host.example/x"),
        ("https://svc:p<ss>@host?to=a@b", "https://<secret-1>@host?to=a@b"),
        (r"{\"password\": \"abc\", \"n\": 1}", r"{\"password\": \"<secret-1>\", \"n\": 1}"),
        (r"\\\"api_key\\\": \\\"a\\\\\\\"bc\\\" x", r"\\\"api_key\\\": \\\"<secret-1>\\\" x"),
        (r"{\"env\": \"MY_TOKEN=abc\"}", r"{\"env\": \"MY_TOKEN=<secret-1>\"}"),
        ('{"password": "ab\\"cd", "n": 1}', '{"password": "<secret-1>", "n": 1}'),
        ('PASSWORD="it\'s" x', 'PASSWORD="<secret-1>" x'),
        ('{"password": "cut o', '{"password": "<secret-1>'),
        ("PASSWORD=ab;cd rest", "PASSWORD=<secret-1> rest"),
        ("PASSWORD=ab,cd&ef;g rest", "PASSWORD=<secret-1> rest"),
        ("PASSWORD=ab;cd;USER=x;y", "PASSWORD=<secret-1>;USER=x;y"),
        ("PASSWORD=ab; cd", "PASSWORD=<secret-1>; cd"),
        ("PASSWORD=ab;", "PASSWORD=<secret-1>;"),
        ("Authorization: Token abc", "Authorization: Token <secret-1>"),
        ("Authorization: abc", "Authorization: <secret-1>"),
        ("Authorization: Ours abc\nHost: x", "Authorization: <secret-1>\nHost: x"),
        ("-H 'authorization: bearer a b", "-H 'authorization: bearer <secret-1> b"),
        ('"Authorization": "Basic YTpi", "n": 1', '"Authorization": "Basic <secret-1>", "n": 1'),
        ('Authorization: Token token="abc", nonce="def"', "Authorization: Token <secret-1>"),
        ("Proxy-Authorization: Digest a=b, response=cd", "Proxy-Authorization: Digest <secret-1>"),
        ("[('Authorization', 'Token abc'), 1]", "[('Authorization', 'Token <secret-1>'), 1]"),
        ("{b'authorization': b'Bearer: abc'}", "{b'authorization': b'Bearer: <secret-1>'}"),
        ("{'password': b'abc'}", "{'password': b'<secret-1>'}"),
        ("X-Api-Key: abc", "X-Api-Key: <secret-1>"),
        ("Cookie: a=b; sid=c d; e\nHost: x", "Cookie: <secret-1>\nHost: x"),
        ("< Set-Cookie: sid=abc; Path=/; HttpOnly\r\nx", "< Set-Cookie: <secret-1>\r\nx"),
        ("curl -H 'Cookie: a=b; c=d' https://x.example", "curl -H 'Cookie: <secret-1>' https://x.example"),
        ("{'Cookie': 'a=b; c=d', 'n': 1}", "{'Cookie': '<secret-1>', 'n': 1}"),
        ("[(b'set-cookie', b'a=b; c=d'), 1]", "[(b'set-cookie', b'<secret-1>'), 1]"),
        ('Cookie: a="b c"; d=e', "Cookie: <secret-1>"),
        (r"b'Cookie: a=b; c=d\r\nHost: x'", r"b'Cookie: <secret-1>\r\nHost: x'"),
        ("Proxy-Authorization: Basic YTpi", "Proxy-Authorization: Basic <secret-1>"),
        ("X-Auth-Token: abc", "X-Auth-Token: <secret-1>"),
        ("X-Auth: abc", "X-Auth: <secret-1>"),
        ("X-CSRFToken: abc", "X-CSRFToken: <secret-1>"),
        ("x-amz-security-token:abc", "x-amz-security-token:<secret-1>"),
        ("Ocp-Apim-Subscription-Key: abc", "Ocp-Apim-Subscription-Key: <secret-1>"),
        ("PRIVATE-TOKEN: abc", "PRIVATE-TOKEN: <secret-1>"),
        ('{"auth": "dXNlcjpwYXNz"}', '{"auth": "<secret-1>"}'),
        ("session_id: abc", "session_id: <secret-1>"),
        ("pwd: abc", "pwd: <secret-1>"),
        ("jwt=abc", "jwt=<secret-1>"),
        ("wifi-psk: abc", "wifi-psk: <secret-1>"),
        ('"instance_id": "i-0123456789abcdef0"', '"instance_id": "<instance-1>"'),
        ("on i-0a1b2c3d in subnet-0123456789abcdef0", "on <instance-1> in <instance-2>"),
        ("arn:aws:iam::123456789012:role/x", "arn:aws:iam::<instance-1>:role/x"),
        ("host ip-10-0-3-17.ec2.internal", "host <instance-1>.ec2.internal"),
        ("/subscriptions/ab-cd/resourceGroups", "/subscriptions/<instance-1>/resourceGroups"),
        ("projects/my-project/zones/us-a", "projects/<instance-1>/zones/us-a"),
        ("https://x.example/y?sv=1&sig=a%2Fb%3D&se=2", "https://x.example/y?sv=1&sig=<secret-1>&se=2"),
        ("https://x.example/y?key=abc#z", "https://x.example/y?key=<secret-1>"),
        ("https://x.example/y?a=1&signature=abc", "https://x.example/y?a=1&signature=<secret-1>"),
        (
            "https://x.example/y?X-Amz-Credential=ab/20261129/s3&X-Amz-Signature=0f1e&n=1",
            "https://x.example/y?X-Amz-Credential=<secret-1>&X-Amz-Signature=<secret-2>&n=1",
        ),
        ("run --token\tabc --n 1", "run --token\t<secret-1> --n 1"),
        ("run --token  abc", "run --token  <secret-1>"),
        ("['run', '--token', 'abc', '1']", "['run', '--token', '<secret-1>', '1']"),
        ("of sk_live_abcdefgh01 x", "of <secret-1> x"),
        ("rk_live_abcdefgh01", "<secret-1>"),
        ("pk_test_abcdefgh01", "<secret-1>"),
        (
            "a\n-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nabc\n-----END PGP PRIVATE KEY BLOCK-----\nb",
            "a\n<secret-1>\nb",
        ),
        ("ghp_0123456789abcdef", "<secret-1>"),
        ("x github_pat_0123456789_abc y", "x <secret-1> y"),
        ("hf_abcdefghijklmnop", "<secret-1>"),
        ("sk-proj-abcdefghijkl", "<secret-1>"),
        ("AKIAIOSFODNN7EXAMPLE", "<secret-1>"),
        ("glpat-abcdefghijkl", "<secret-1>"),
        ("xoxb-1234567890-abc", "<secret-1>"),
        ("nvapi-abcdefgh", "<secret-1>"),
        ("(eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln)", "(<secret-1>)"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nb", "a\n<secret-1>\nb"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "<secret-1>"),
        ("inet 192.168.1.7/24", "inet <ip-1>/24"),
        ("peer 10.1.2.3:8000 and 8.8.8.8:53", "peer <ip-1>:8000 and <ip-2>:53"),
        ("http://203.0.113.9/x", "http://<ip-1>/x"),
        ("addr fe80::1ff:fe23:4567:890a", "addr <ip-1>"),
        ("link 00:1b:44:11:3A:b7", "link <mac-1>"),
        ("Serial Number                : 1562120006421", "Serial Number                : <serial-1>"),
        ('"serial": "A12-3"', '"serial": "<serial-1>"'),
    ],
)
def test_hidden(redactor: Redactor, text: str, shown: str) -> None:
    """What is private goes, and what stands around it stays."""
    assert redactor.text(text) == shown
    assert redactor.text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'uuid'",
        "dispatch_key=CPU, ray_device_key: GPU",
        "num_tokens=512 max_model_tokens: 8192 tokenizers 0.22",
        "passed=3 PASSED: x bypass: yes monkeypatch=1",
        "author: x, authors=y, oauthlib 3.2, session: 5, sessions=2, PSKX: x, cookiecutter 2.6",
        "i-node i-8 sg-1 r-12 ami-x vol-1 12:34:56",
        "nvidia-cudnn-cu12 9.1.0.70, driver 570.86.10.15, CUDA 12.8",
        "0000:65:00.0 /dev/nvidia0 sm_90a gfx942:sramecc+:xnack-",
        "x86-64-v4 avx512_vp2intersect",
        "std::runtime_error at::Tensor c10::Error",
        "12:34:56 2026-11-29",
        "HARDPOINT_PLUGINS=platform/cuda",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "set TOKEN= or KEY=none",
        "4:memory:/docker/0123456789abcdef0123456789abcdef",
        "pip install 'hardpoint-cpu>=0.1,<0.2'",
        "",
    ],
)
def test_left_alone(redactor: Redactor, text: str) -> None:
    """What only looks like something private stays readable."""
    assert redactor.text(text) == text


def test_same_secret_same_placeholder(redactor: Redactor) -> None:
    """Wherever it stands and whatever gave it away, one secret has one placeholder, and two have two."""
    data = redactor.data({"A_TOKEN": "first-one", "b": ["X_KEY=first-one", "Y_KEY=second"], "c": "/tmp/q/x /tmp/q/y"})
    assert data == {
        "A_TOKEN": "<secret-1>",
        "b": ["X_KEY=<secret-1>", "Y_KEY=<secret-2>"],
        "c": "<tmp>/<folder-1>/x <tmp>/<folder-1>/y",
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
def test_lines_of_a_secret(end: str) -> None:
    """Whoever quotes one line of a secret variable quotes a secret; how a key begins still gives another key away."""
    begin = "-----BEGIN PRIVATE KEY-----"
    secret = end.join((begin, "first-line-01", " second-line-2", "end", "-----END PRIVATE KEY-----"))
    redactor = Redactor(Private({}, (), {}, (secret,)), salt=b"salt")
    assert redactor.text("at first-line-01, second-line-2!, end") == "at <secret-1>, <secret-2>!, end"
    assert redactor.text(f"x {secret} y") == "x <secret-3> y"
    assert redactor.text(f"{begin}\nanother\n-----END PRIVATE KEY-----") == "<secret-4>"


def test_data(redactor: Redactor) -> None:
    """Keys are redacted too; numbers, truth and nothing stay; what is private by its name goes, numbers as well."""
    data = {
        "/home/alicia/x": {"value": "alicia"},
        "serial_number": 12345,
        "/sys/class/dmi/id/board_serial": {"value": "ABC\n"},
        "api_key": "abc",
        "Authorization": "Token abc.d",
        "dispatch_key": "CPU",
        "total": 12,
        "flag": True,
        "nothing": None,
        "list": ("alicia", 1.5),
        "pyserial": {"value": "3.5"},
        "version": "10.1.2.3",
        "machine": {"planted": 1},
        "arguments": ["run", "--token", "def", "--n", 1],
        "instance_id": "box 7",
        "Set-Cookie": "a=b; c",
        "tools": {
            "list --token ghi --all": {"stdout": "devices: 2"},
            "cloud auth print-access-token": {"stdout": "jkl\n"},
        },
    }
    assert redactor.data(data) == {
        "<home>/x": {"value": "<user>"},
        "serial_number": "<serial-1>",
        "/sys/class/dmi/id/board_serial": {"value": "<serial-2>"},
        "api_key": "<secret-1>",
        "Authorization": "<secret-2>",
        "dispatch_key": "CPU",
        "total": 12,
        "flag": True,
        "nothing": None,
        "list": ["<user>", 1.5],
        "pyserial": {"value": "3.5"},
        "version": "10.1.2.3",
        "machine": {"planted": 1},
        "arguments": ["run", "--token", "<secret-3>", "--n", 1],
        "instance_id": "<instance-1>",
        "Set-Cookie": "<secret-4>",
        "tools": {
            "list --token <secret-5> --all": {"stdout": "devices: 2"},
            "cloud auth print-access-token": {"stdout": "<secret-6>"},
        },
    }


def test_mounts(redactor: Redactor) -> None:
    """Of what is mounted only the kernel's own hierarchies stay: the rest names servers and people's folders."""
    text = (
        "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "40 1 0:50 / /mnt/secret-project rw - nfs4 nas01.corp.example:/export/bob rw\n"
        "41 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    )
    data = redactor.data({"files": {"/proc/self/mountinfo": {"value": text}}})
    assert data["files"]["/proc/self/mountinfo"]["value"] == text.splitlines(keepends=True)[0]


UUID = "5a1c2b3d-1111-2222-3333-444455556666"
OTHER = "5a1c2b3d-1111-2222-3333-444455557777"


def test_ids_of_devices(redactor: Redactor) -> None:
    """An id becomes another of the same form, always the same one; its beginning becomes the other's beginning."""
    shown = redactor.text(f"GPU-{UUID}")
    assert re.fullmatch(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", shown)
    assert shown != f"GPU-{UUID}"
    assert redactor.text(f"MIG-GPU-{UUID}/1/0") == f"MIG-{shown}/1/0"
    assert redactor.text(f"id {UUID}") == f"id {shown[4:]}"
    assert redactor.text(f"GPU-{UUID.upper()}") == shown.upper()
    other = redactor.text(f"GPU-{OTHER}")
    assert other[:-4] == shown[:-4]
    assert other != shown
    mask = redactor.data({"CUDA_VISIBLE_DEVICES": f"GPU-5,GPU-5a1c2b3d-1,0,GPU-{OTHER}"})["CUDA_VISIBLE_DEVICES"]
    first, second, number, last = mask.split(",")
    assert shown.startswith(first)
    assert shown.startswith(second)
    assert (number, last) == ("0", other)
    assert Redactor(PRIVATE).text(f"GPU-{UUID}") != Redactor(PRIVATE).text(f"GPU-{UUID}")


def test_ids_in_the_forms_of_the_kernel_driver(redactor: Redactor) -> None:
    """The decimal id in a topology's properties and the hexadecimal one in sysfs are the same device still."""
    number = 0x5A1C2B3D00112233
    shown = redactor.text(f"GPU-{number:016x}")[4:]
    properties = redactor.text(f"simd_count 304\nunique_id {number}\nlocation_id 256\n")
    assert properties == f"simd_count 304\nunique_id {int(shown, 16)}\nlocation_id 256\n"
    path = "/sys/class/drm/card0/device/unique_id"
    assert redactor.data({path: {"value": f"{number:016x}\n"}}) == {path: {"value": f"{shown}\n"}}


def test_what_this_computer_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home, names, environments and the values of secret variables are found; words of everyday use are not."""
    monkeypatch.setenv("HOME", "/home/carola-x")
    monkeypatch.setenv("USER", "carola-x")
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("HOSTNAME", "box-17.corp.example")
    monkeypatch.setenv("VIRTUAL_ENV", "/opt/moonshot/env")
    monkeypatch.setenv("PATH", "/usr/bin:/opt/rocm/bin:/srv/moonshot/bin:relative")
    monkeypatch.setenv("TMPDIR", "/scratch/carola")
    monkeypatch.setenv("SOME_TOKEN", "long-enough")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled")
    monkeypatch.setenv("SSL_KEY_FILE", "/etc/ssl/file")
    monkeypatch.setenv("SHORT_KEY", "abc")
    monkeypatch.setenv("NUMBER_KEY", "1234567")
    found = private_facts()
    assert found.folders["/home/carola-x"] == "<home>"
    assert found.folders["/opt/moonshot/env"] == "<venv>"
    assert "/srv/moonshot/bin" in found.folders
    assert not {"/usr/bin", "/opt/rocm/bin", "relative", "/", "/usr", "/tmp"} & set(found.folders)
    assert "/scratch/carola" in found.temporary
    assert (found.words["carola-x"], found.words["box-17"]) == ("<user>", "<host>")
    assert "root" not in found.words
    assert "long-enough" in found.secrets
    assert not {"disabled", "/etc/ssl/file", "abc", "1234567"} & set(found.secrets)


def test_environment_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with no variables at all can still be described."""
    for name in ("HOME", "USER", "LOGNAME", "PATH", "TMPDIR", "HOSTNAME", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    assert "/tmp" in private_facts().temporary


def test_user_whom_nobody_has_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a number that has no name."""
    pwd = pytest.importorskip("pwd")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setenv("USER", "carola-x")
    assert private_facts().words["carola-x"] == "<user>"


@given(st.text() | st.from_regex(r"[A-Z_]*(KEY|TOKEN)[ :=]+[a-z/\"' -]*"))
def test_any_text(text: str) -> None:
    """Whatever the text is, it is redacted in reasonable time, and what stood in secret variables is not in it."""
    shown = Redactor(PRIVATE, salt=b"x").text(f"{text} planted-value {text}")
    assert "planted" not in shown


@pytest.mark.parametrize(
    "part",
    [
        *(
            "A",
            "_",
            "a-",
            "/tmp",
            "KEY",
            "://",
            "0",
            "token:",
            "eyJ",
            "--",
            "1.",
            "GPU-",
            "\\",
            'KEY="',
            'KEY=\\"',
            "KEY=a;b",
        ),
        *(
            ";a",
            ",",
            "@",
            "://a@",
            "Authorization: ",
            'Authorization: a="',
            "Authorization: a ",
            "Cookie: ",
            'Cookie: a="',
            "cookie",
            "ip-1",
            "i-0",
            "projects/a",
            "x-auth",
            "-----BEGIN ",
            "?sig=",
        ),
        *("KEY=", "KEY=\\", "--key ", "-- \t", "key: '\\\\\"", "authorization"),
    ],
)
def test_long_texts(part: str) -> None:
    """A long run of whatever a pattern begins with costs no more than the text is long."""
    redactor = Redactor(PRIVATE)
    assert redactor.text(part * (60_000 // len(part))) is not None


def test_any_data(redactor: Redactor) -> None:
    """An empty environment redacts what is known by its form alone."""
    nobody = Redactor(Private({}, (), {}, ()))
    data: Any = {"a": "/home/alicia hf_abcdefghijkl", "b": {}}
    assert nobody.data(data) == {"a": "/home/<user-1> <secret-1>", "b": {}}
