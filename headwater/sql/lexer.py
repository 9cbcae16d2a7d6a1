"""Tokens of Spark SQL text: the words shared by expressions, types and schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from headwater.core.errors import DataflowError

MAX_TEXT = 64 * 1024
"""Longest accepted text, in characters. Longer text is a mistake or an attack."""

Kind = Literal["word", "quoted", "string", "number", "symbol", "end"]

# Those of Spark's ``SqlBaseLexer.g4``, which are not Python's ``\s``.
_SPACE = r"[\t-\r \u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]+"
_TOKEN = re.compile(
    rf"""
    (?P<space>{_SPACE}|--(?:\\\n|[^\r\n])*)
  | (?P<comment>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[lLsSyYfFdD])?(?![A-Za-z0-9_]))
  | (?P<word>[A-Za-z0-9_]+)
  | (?P<symbol><=>|<=|>=|<>|!=|==|\|\||->|::|=>|[-+*/%&|^~<>=!(),.\[\]:{{}}?])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_UNSAFE = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\x1a": "\\Z"}
_NUL_BEFORE_DIGITS = re.compile(r"\x00(?=[0-7]{2})")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Words with a special meaning at the start of an expression or after one, so a column of that name is
# written in back-quotes.
_SPECIAL_WORDS = """
    all and any as between both by case cast collate cross current_date current_time current_timestamp
    current_user distinct div else end escape except exists false from full group having ilike in inner
    intersect interval is join lateral leading left like limit minus natural not null on or order over regexp
    right rlike select semi session_user set some table then trailing true union unknown user using values
    when where with within
"""
_SPECIAL = frozenset(_SPECIAL_WORDS.split())


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind, its text (unquoted and unescaped), and the position of its first character."""

    kind: Kind
    text: str
    at: int
    end: int

    @property
    def upper(self) -> str:
        """Return the text in upper case if it can be a keyword, else ''."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def shown(self) -> str:
        """Return a description for an error message."""
        return "the end of the text" if self.kind == "end" else repr(self.text)


def tokens(text: str, *, longest: int = MAX_TEXT, hints: bool = False) -> tuple[Token, ...]:
    """Split Spark SQL text into tokens; the last one is of kind ``end``. ``hints``: accept ``/*+``, as a symbol."""
    if len(text) > longest:
        raise DataflowError(
            f"the text has {len(text)} characters; at most {longest} are accepted",
            hint="split it over several with_columns(...)",
        )
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise DataflowError(f"unexpected {text[at]!r} at position {at} of {shorten(text)}", hint=_advice(text[at]))
        kind, part, at = match.lastgroup, match.group(), match.end()
        if kind == "space":
            continue
        if kind == "comment" and hints and text.startswith("/*+", match.start()):
            at += 1
            found.append(Token("symbol", "/*+", match.start(), at))
            continue
        if kind == "comment":
            at = _comment_end(text, match.start())
            continue
        if kind == "raw":
            found.append(Token("string", part[2:-1], match.start(), at))
        elif kind == "string":
            found.append(Token("string", unescape(part), match.start(), at))
        elif kind == "quoted":
            found.append(Token("quoted", part[1:-1].replace("``", "`"), match.start(), at))
        elif kind == "number":
            found.append(Token("number", part, match.start(), at))
        elif kind == "word":
            found.append(Token("word", part, match.start(), at))
        else:
            found.append(Token("symbol", part, match.start(), at))
    found.append(Token("end", "", len(text), len(text)))
    return tuple(found)


_COMMENT_MARK = re.compile(r"/\*(?!\+)|\*/")


def _comment_end(text: str, start: int) -> int:
    """Return the end of a bracketed comment; as in Spark, comments nest, and hints are not comments."""
    if text.startswith("/*+", start):
        raise DataflowError(
            f"unexpected '/*+' at position {start} of {shorten(text)}",
            hint="hints belong to queries: write a comment as /* ... */, without the plus sign",
        )
    depth, at = 1, start + 2
    while depth:
        mark = _COMMENT_MARK.search(text, at)
        if mark is None:
            raise DataflowError(
                f"the comment at position {start} of {shorten(text)} does not end", hint="end it with */"
            )
        depth += 1 if mark.group() == "/*" else -1
        at = mark.end()
    return at


def unescape(literal: str) -> str:
    """Return the value of a quoted string literal, as Spark reads it."""
    mark, body = literal[0], literal[1:-1].replace(literal[0] * 2, literal[0])
    if "\\" not in body:
        return body
    # A doubled quote is replaced only outside escapes: repeat token by token if there are escapes.
    body = re.sub(rf"(\\.)|{mark}{mark}", lambda m: m.group(1) or mark, literal[1:-1], flags=re.DOTALL)
    return _ESCAPE.sub(_unescape_one, body)


def _unescape_one(match: re.Match[str]) -> str:
    short, long, octal, char = match.groups()
    if short or long:
        code = int(short or long, 16)
        if code > 0x10FFFF:
            raise DataflowError(f"{match.group()} is not a Unicode character")
        return chr(code)
    return chr(int(octal, 8)) if octal else _ESCAPED.get(char, char)


def quote_string(value: str) -> str:
    """Write a value as a Spark string literal."""
    # Two octal digits after \\0 would make another character of it.
    parts = _NUL_BEFORE_DIGITS.sub(r"\\000", "".join(c if c == "\0" else _UNSAFE.get(c, c) for c in value))
    return "'" + parts.replace("\0", _UNSAFE["\0"]) + "'"


def quoted(name: str) -> str:
    """Write a name in back-quotes: the only place that does so."""
    return "`" + name.replace("`", "``") + "`"


def quote_name(name: str, *, after_dot: bool = False) -> str:
    """Write a name, in back-quotes only where Spark needs them."""
    if _PLAIN.match(name) and (after_dot or name.lower() not in _SPECIAL):
        return name
    return quoted(name)


def shorten(text: str, limit: int = 80) -> str:
    """Quote text for an error message, shortened to ``limit``."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def _advice(char: str) -> str:
    if char == ";":
        return "give one expression, without a semicolon"
    if char in "'\"`":
        return f"close the {char} opened here"
    return "write one Spark SQL expression; put names with special characters in back-quotes"


class TokenReader:
    """Reads the tokens of ``text`` from a position on; ``hint`` tells how to write such a text."""

    hint: ClassVar[str]

    def __init__(self, found: tuple[Token, ...], *, text: str, position: int = 0) -> None:
        self._tokens = found
        self._text = text
        self.position = position

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self.position + ahead, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self._peek()
        self.position += 1
        return token

    def _take(self, symbol: str) -> bool:
        token = self._peek()
        if token.kind == "symbol" and token.text == symbol:
            self.position += 1
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            raise self._unexpected(self._peek(), repr(symbol))

    def _unexpected(self, token: Token, wanted: str, hint: str | None = None) -> DataflowError:
        return DataflowError(
            f"expected {wanted}, found {token.shown} at position {token.at} of {shorten(self._text)}",
            hint=hint or self.hint,
        )
