"""Redaction: one function over every string of a report and a snapshot.

What is hidden is replaced by a placeholder, always the same for the same text within one file, so that what belongs
together still does. Ids of devices keep their form, and an id that begins like another still does: masks may name a
device by the beginning of its id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hardpoint._machine import Json
    from hardpoint._private import Private

_SECRET_WORDS: Final = re.compile(
    r"token(?!s|i)|secret|passw(?:or)?d|passphrase|credential|signature|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"auth[_-]?key|session[_-]?key|license[_-]?key|subscription[_-]?key|encryption[_-]?key|cookie|"
    r"(?:\A|[._-])(?:auth|bearer|creds?|csrf|hmac|jwt|otp|passcode|passkey|psk|pwd|sess(?:ion)?[_-]?id|xsrf)\Z|"
    r"\A(?:x|proxy|www)[_-][\w-]*auth(?:entication|enticate)?\Z",
    re.IGNORECASE,
)
"""What leaves no doubt in any name."""
_SECRET_PARTS: Final = re.compile(r"TOKEN(?!S|I)|SECRET|PASS|KEY")
"""What is enough in a name that is written as variables are."""
_NOT_SECRET: Final = frozenset(("dispatch_key", "ray_device_key"))
"""Fields of ours that are called so."""
_NOTHING: Final = frozenset(("none", "null", "true", "false", "0", "1"))

# Names are matched whole and judged afterwards: a pattern that looks inside them takes the square of the time.
# Inside another string a quote has backslashes before it, twice as many and one more at each level.
_ASSIGNED: Final = re.compile(r"(?<![\w.-])([\w.-]+)(?:\\{0,31}[\"'])?(?:=|[ \t]+=[ \t]*)")
_FLAG: Final = re.compile(r"(?:(?<=[\s\"'])|\A)--?([\w-]+)(?:=|[ \t]+|\\{0,31}[\"'],[ \t]*(?=\\{0,31}[\"']))")
_QUERY: Final = re.compile(r"(?i)(?:(?<=[?&])|(?<=u0026))((?:amp;)?(?:sig|key|auth|hmac|pass|pwd))=")
"""What says nothing in any other place than a URL."""
# A colon also stands in plain sentences, after any word with KEY in it.
_DESCRIBED: Final = re.compile(r"(?<![\w.-])([\w.-]+)(?:\\{0,31}[\"'])?[ \t]*:[ \t]*")
_VALUE: Final = re.compile(
    # In quotes, up to the same quote; where that was cut off, up to the end of the line.
    r"""(?P<prefix>[bBrRuU]{0,2})(?P<quote>\\{0,31}["'])(?:(?P<quoted>.*?)(?<!\\)(?P=quote)|(?P<cut>.+))"""
    # Without, a separator is a part of the secret unless another name, or nothing, comes after it.
    r"""|(?:[^\s"'\\,;&]++|\\(?!\\{0,31}["'])|;(?!["'\s\\]|\Z|[\w.-]+=)|[,&](?!["'\s\\]|\Z|[\w.-]+[=:]))++"""
)

_ISSUED: Final = (
    r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|"
    r"[prs]k_(?:live|test)_\w{4,}|whsec_\w{8,}|"
    r"sk-[\w-]{12,}|xox[abeprs]-[\w-]{8,}|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}|AIza[\w-]{20,}|"
    r"ya29\.[\w-]{8,}|nvapi-[\w-]{8,}|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{8,}|"
    r"eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?)"
)
"""What issuers begin their tokens with."""
_AUTHORIZATION: Final = re.compile(
    r"""(?ix)(?P<head>authorization
      (?: \\{0,31}["'][ \t]*,[ \t]*(?=b?\\{0,31}["']) | (?:\\{0,31}["'])?[ \t]*[:=][ \t]* ) (?:b?\\{0,31}["'])?
      (?P<scheme>(?:api-?key|aws[\w-]*|basic|bearer|digest|hawk|jwt|key|negotiate|ntlm|oauth|signature|token):?[ \t]+)?)
    # A word or parameters; where the scheme is none of those, the first word may be the secret, or the second.
    (?P<secret>(?(scheme)|(?:[\w-]+:?[ \t]+)?)
      (?:[\w-]+=\\{0,31}"[^"\n]*"|[^\s"',\\]+) (?:,[ \t]*(?:[\w-]+=\\{0,31}"[^"\n]*"|[^\s"',\\]+))*)"""
)
"""The header, in every form in which programs show it."""

_COOKIE_NAME: Final = re.compile(r"(?i)(?:set-)?cookie2?")
_COOKIE: Final = re.compile(
    r"""(?ix)(?P<head>(?<![\w.-])(?:set-)?cookie2?
      (?: \\{0,31}["'][ \t]*,[ \t]*(?=b?\\{0,31}["']) | (?:\\{0,31}["'])?[ \t]*[:=][ \t]* ) (?:b?\\{0,31}["'])?)
    # Pairs, whose values may be quoted, up to the end of the line or of the text that quotes it all.
    (?P<secret>(?:="[^"\n]*"(?=[ \t]*(?:;|$))|[^\r\n"'\\])+)"""
)
"""The header, whose whole line is the secret, spaces and semicolons included."""

_SECRETS: Final = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL),
        # Who a URL is opened as: up to the last @ of the part that names the server.
        (r"(?<=://)[^\s/?#'\"]+(?=@)", 0),
        (r"(?i)(?<=\bbearer )\s*[\w.~+/=-]{6,}|(?<=\bbasic )\s*[\w+/=]{8,}", 0),
        (_ISSUED, 0),
    )
)
_INSTANCE: Final = re.compile(
    r"(?<![\w-])(?:i|vol|eni|eipalloc|ami|vpc|subnet|sg|r|snap|lt|fs|fsap|cr|rtb|igw)-(?:[0-9a-f]{17}|[0-9a-f]{8})(?![\w-])"
    r"|(?<=:)\d{12}(?=:)|(?<=\bprojects/)[\w-]+(?=/(?:zones|locations)/)|(?<=/subscriptions/)[\w-]+"
    r"|(?<![\w-])ip(?:-\d{1,3}){4}(?![\w-])"
)
"""What a cloud calls a machine, its parts and whose they are."""
_INSTANCE_NAME: Final = re.compile(
    r"(?i)(?:\A|[/._ -])(?:instance|account|tenant|subscription|reservation|owner)[_-]?id\Z"
)
_MAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_SERIAL: Final = re.compile(r"(?i)(\bserial(?:[ _-]?(?:number|no\.?))?[\"']?\s*[:=]\s*[\"']?)([\w.-]+)")
_SERIAL_NAME: Final = re.compile(
    r"(?i)(?:\A|[/._ -])(?:serial(?:[_ -]?(?:number|no))?|asset[_-]?tag|machine[_-]id|boot_id|product_uuid)\Z"
)
_PRIVATE_IP: Final = re.compile(
    r"(?<![\w.=<>~+-])(?:10|127|192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01])|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7]))"
    r"(?:\.\d{1,3}){2,3}(?![\w.])"
)
# Any other four numbers may be a version, unless they stand where only an address does.
_PUBLIC_IP: Final = re.compile(r"(?<=[/@])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w.=-])(?:\d{1,3}\.){3}\d{1,3}(?=:\d)")
_IPV6: Final = re.compile(r"(?i)(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3})(?::[0-9a-f]{0,4}){2,7}(?![\w:])")
_MAC: Final = re.compile(r"(?i)(?<![\w:-])(?:[0-9a-f]{2}([:-]))(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])")
_DEVICE_ID: Final = re.compile(
    r"(?i)(?<![0-9a-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z])"
    r"|(?<=\bGPU-)[0-9a-f][0-9a-f-]{3,}|(?<=\bMIG-)(?!GPU)[0-9a-f][0-9a-f-]{3,}"
)
_SHORT_ID: Final = re.compile(r"(?i)(?<=\bGPU-)[0-9a-f][0-9a-f-]*|(?<=\bMIG-)(?!GPU)[0-9a-f][0-9a-f-]*")
_MASK: Final = re.compile(r"VISIBLE_DEVICES\Z")
_UNIQUE_ID: Final = re.compile(r"(?:(?<=\bunique_id )|(?<=\bhive_id ))\d{6,20}\b")
_OTHERS_HOME: Final = re.compile(
    r"(?:(?<=/home/)|(?<=/Users/)|(?<=:\\Users\\))(?!Shared\b|Public\b)[^\s/\\:'\",;<>|()\[\]{}]+"
)
"""Whose home it is, of whoever."""
_BARE_WORDS: Final = re.compile(r"(?<!\S)[\w./-]+(?!\S)")
"""Of a command line: what is neither assigned nor quoted."""
_MOUNTS: Final = "/proc/self/mountinfo"
_KERNEL_MOUNT: Final = re.compile(r" - (?:cgroup2?|proc|sysfs) ")
_MIN_LINE: Final = 8
_PLACEHOLDER: Final = re.compile(r"<[a-z]+(?:-\d+)?>")
_FIELD: Final = re.compile(r"[a-z_]+")
_VERSION_NAME: Final = re.compile(r"version\Z|\Arelease\Z|kernel")


class Redactor:
    """Hides what is private. Keeps what stands for what, so one object serves one file."""

    def __init__(self, private: Private, salt: bytes | None = None) -> None:
        import os

        self._salt = os.urandom(16) if salt is None else salt
        self._numbers: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._literal = _any_of(part for secret in private.secrets for part in _with_its_lines(secret))
        self._words = {name.lower(): shown for name, shown in private.words.items()}
        names = _any_of(private.words)
        self._names = None if names is None else re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{names.pattern})(?![A-Za-z0-9])")
        self._folders = private.folders
        self._temporary = frozenset(private.temporary) - private.folders.keys()
        self._paths = _path_pattern([*private.folders, *self._temporary])

    def data(self, value: Json, name: str = "") -> Json:
        """A copy of JSON data with every string redacted, keys too. `name` is the key that it stands under."""
        if isinstance(value, dict):
            return {self._key(key): self._entry(item, key, name) for key, item in value.items()}
        if isinstance(value, list | tuple):
            flags = ("", *(item if isinstance(item, str) else "" for item in value))
            return [self._item(item, name, before) for item, before in zip(value, flags, strict=False)]
        if isinstance(value, str):
            return self.text(value, name)
        return value

    def _key(self, key: str) -> str:
        # A user called `machine` must not take the report apart.
        return key if _FIELD.fullmatch(key) else self.text(key)

    def _entry(self, value: Json, key: str, name: str) -> Json:
        # What a record says of a question stands one level below it.
        name = name if key in ("value", "stdout") else key
        if name == _MOUNTS and isinstance(value, str):
            # Servers and other people's folders; control groups are all that anybody looks for.
            value = "".join(line for line in value.splitlines(keepends=True) if _KERNEL_MOUNT.search(line))
        if isinstance(value, str | int) and not isinstance(value, bool):
            if _SERIAL_NAME.search(name) and str(value).strip():
                return self._numbered("serial", str(value).strip())
            if _INSTANCE_NAME.search(name) and str(value).strip():
                return self._numbered("instance", str(value).strip())
            if isinstance(value, str) and value and _asks_for_a_secret(name):
                return self._secret(value)
        return self.data(value, name)

    def _item(self, value: Json, name: str, before: str) -> Json:
        # Of a command's arguments, what comes after a flag that asks for a secret.
        if isinstance(value, str) and value and before.startswith("-") and _names_a_secret(before.lstrip("-")):
            return self.text(value) if value.startswith("--") else self._secret(value)
        return self.data(value, name)

    def text(self, text: str, name: str = "") -> str:
        """One string. `name`: the key that it stands under, which may say what it is."""
        if self._literal is not None:
            text = self._literal.sub(lambda found: self._secret(found[0]), text)
        text = _AUTHORIZATION.sub(lambda found: found["head"] + self._secret(found["secret"]), text)
        text = _COOKIE.sub(lambda found: found["head"] + self._secret(found["secret"]), text)
        for pattern in _SECRETS:
            text = pattern.sub(lambda found: self._secret(found[0]), text)
        text = self._values(text, _ASSIGNED, _names_a_secret)
        text = self._values(text, _FLAG, _names_a_secret)
        text = self._values(text, _QUERY, bool)
        text = self._values(text, _DESCRIBED, _describes_a_secret)
        text = _MAIL.sub(lambda found: self._numbered("mail", found[0]), text)
        if self._paths is not None:
            text = self._paths.sub(self._path, text)
        text = _OTHERS_HOME.sub(lambda found: self._numbered("user", found[0]), text)
        if self._names is not None:
            text = self._names.sub(lambda found: self._words[found[0].lower()], text)
        text = _SERIAL.sub(lambda found: found[1] + self._numbered("serial", found[2]), text)
        text = self._ids(text, name)
        text = _INSTANCE.sub(lambda found: self._numbered("instance", found[0]), text)
        text = _MAC.sub(lambda found: self._numbered("mac", found[0].lower()), text)
        if not _VERSION_NAME.search(name):
            for pattern in (_PUBLIC_IP, _PRIVATE_IP, _IPV6):
                text = pattern.sub(lambda found: self._numbered("ip", found[0]), text)
        return text

    def _ids(self, text: str, name: str) -> str:
        text = _UNIQUE_ID.sub(lambda found: str(int(self._pseudonym(f"{int(found[0]):016x}"[-16:]), 16)), text)
        if name.endswith("/unique_id"):
            return re.sub(r"[0-9A-Fa-f]{8,}", lambda found: self._pseudonym(found[0]), text)
        pattern = _SHORT_ID if _MASK.search(name) else _DEVICE_ID
        return pattern.sub(lambda found: self._pseudonym(found[0]), text)

    def _pseudonym(self, text: str) -> str:
        """Each digit shifted by what the digits before it say, so that ids with one beginning keep one."""
        import hashlib

        seen, shown = "", []
        for character in text:
            digit = character.lower()
            if digit not in "0123456789abcdef":
                shown.append(character)
                continue
            shift = hashlib.blake2s(seen.encode(), key=self._salt, digest_size=1).digest()[0]
            other = "0123456789abcdef"[(int(digit, 16) + shift) % 16]
            shown.append(other)
            seen += digit
        found = "".join(shown)
        return found.upper() if text.isupper() else found

    def _values(self, text: str, heads: re.Pattern[str], is_secret: Callable[[str], bool]) -> str:
        """Of ``NAME=secret`` the name stays."""
        parts, position = [], 0
        for head in heads.finditer(text):
            value = _VALUE.match(text, head.end()) if head.end() >= position and is_secret(head[1]) else None
            if value is None:
                continue
            inner = next((part for part in value.group("quoted", "cut") if part is not None), value[0])
            if inner and inner.lower() not in _NOTHING:
                opening = (value["prefix"] or "") + (value["quote"] or "")
                closing = "" if value["quoted"] is None else value["quote"]
                parts += [text[position : head.end()], opening, self._secret(inner), closing]
                position = value.end()
        return "".join([*parts, text[position:]])

    def _path(self, found: re.Match[str]) -> str:
        folder, rest = found["folder"], found["rest"]
        if folder in self._folders:
            return self._folders[folder] + rest
        # The system's own folder for such: which ones are in it, and of whom, is left out.
        *inside, last = rest.replace("\\", "/").split("/")[1:] or [""]
        shown = ["<tmp>", *(self._numbered("folder", part) for part in inside), *([last] if last else [])]
        return "/".join(shown)

    def _secret(self, text: str) -> str:
        return self._numbered("secret", text.strip())

    def _numbered(self, kind: str, text: str) -> str:
        if _PLACEHOLDER.fullmatch(text):
            return text
        known = self._numbers.get((kind, text))
        if known is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            known = self._numbers[kind, text] = f"<{kind}-{self._counts[kind]}>"
        return known


def _names_a_secret(name: str) -> bool:
    if name in _NOT_SECRET:
        return False
    return (name.isupper() and _SECRET_PARTS.search(name) is not None) or _SECRET_WORDS.search(name) is not None


def _describes_a_secret(name: str) -> bool:
    # Of a cookie's header the whole line is gone already.
    return _SECRET_WORDS.search(name) is not None and not _COOKIE_NAME.fullmatch(name)


def _asks_for_a_secret(name: str) -> bool:
    """Whether what stands under a key is a secret: by the key, or by the tool whose output it is.

    A secret among a tool's arguments says nothing of what it prints; one that is *called* so does.
    """
    if " " in name:
        return any(_names_a_secret(word) for word in _BARE_WORDS.findall(name.partition(" -")[0]))
    return _names_a_secret(name) or name.lower().endswith("authorization")


def _with_its_lines(secret: str) -> list[str]:
    """The secret, and what a tool that quotes a single line of it shows; how keys begin and end says nothing."""
    lines = [line.strip() for line in re.split(r"[\r\n]|\\[rn]", secret)]
    return [secret, *(line for line in lines if len(line) >= _MIN_LINE and not line.startswith("-----"))]


def _path_pattern(folders: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the folders, and what is inside; None: there are none."""
    found = sorted(set(folders), key=lambda path: (-len(path), path))
    if not found:
        return None
    # A folder of the first level may be called as one somewhere deep inside another.
    parts = [("" if re.search(r".[/\\]", path) else r"(?<![\w.-])") + re.escape(path) for path in found]
    return re.compile(rf"(?P<folder>{'|'.join(parts)})(?![\w.-])(?P<rest>(?:[/\\][^\s/\\:'\",;<>|()\[\]{{}}]+)*)")


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for any of the texts, the longest first; None: there are none."""
    found = sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None
