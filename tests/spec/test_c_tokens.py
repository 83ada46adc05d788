"""C-family sources: formatting means nothing, tokens mean everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.spec.c_tokens import follow, normalise

SOURCE = r"""
#include "a.h"
#include <vector>
#define SQUARE(x) ((x) * (x))
template <int N> __global__ void scale(float *out, const float* in) {
  int i = blockIdx.x * 1'024 + threadIdx.x;  // where we are
  const char *text = "a // b \" /* c */";
  const char quote = '\'';
  auto raw = R"cu(
    // kept /* as it is
  )cu";
  out[i] += in[i] >> 1 >= 0x1p-3f ? .5e+3f : -1;
}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("// where we are", ""),
        ("// where we are", "/* elsewhere,\n on two lines */"),
        ("// where we are", "// continued \\\n  int not_code;"),
        ("float *out, const float* in", "float* out,\n    const float *in"),
        ("blockIdx.x * 1'024", "blockIdx.x*1'024"),
        ("out[i] += in[i]", "out [ i ]+=in[ i ]"),
        ("#define SQUARE(x) ((x) * (x))", "#  define SQUARE(x) \\\n  ((x)*(x)) // squared"),
        ('#include "a.h"', '# include   "a.h"  // why'),
        ("template <int N>", "temp\\\nlate <int N>"),
        ("\n", "\r\n"),
        ("\n", "\n\n"),
    ],
)
def test_formatting_means_nothing(before: str, after: str) -> None:
    """Comments, white space and continuations leave a source's meaning as it was."""
    assert before in SOURCE
    if after == "\n\n" or after == "\r\n":
        head, raw, tail = SOURCE.partition('R"cu(')
        body, fence, rest = tail.partition(')cu"')
        edited = head.replace(before, after) + raw + body + fence + rest.replace(before, after)
    else:
        edited = SOURCE.replace(before, after)
    assert edited != SOURCE
    assert normalise(edited) == normalise(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("+=", "-="),
        ("1'024", "1'025"),
        ('"a // b', '"a  // b'),
        ("/* c */", "/* d */"),
        ("// kept", "// lost"),
        ("    // kept", "   // kept"),
        ("'\\''", "'\"'"),
        ("SQUARE(x)", "SQUARE (x)"),
        ("<vector>", "<array>"),
        ("int N", "intN"),
        ("in[i] >>", "in[i] > >"),
        ("* (x))", "* (x))\n"),
    ],
)
def test_tokens_mean_everything(before: str, after: str) -> None:
    """A change of any token, string or directive changes the meaning."""
    edited = SOURCE.replace(before, after)
    assert edited != SOURCE
    if after.endswith("\n"):
        edited = edited.replace(after, "* \n (x))")
    assert normalise(edited) != normalise(SOURCE)


def test_directive_lines_are_kept_apart() -> None:
    """Where a directive ends matters, and code around one does not run into it."""
    assert normalise("#define A\nb").text == "# define A\nb"
    assert normalise("#define A b").text == "# define A b"
    assert normalise("a\n#if X /* over\n lines */ && Y\nb # c").text == "a\n# if X && Y\nb # c"


def test_only_quoted_includes_in_code_are_named() -> None:
    """Includes in comments and strings, and system includes, are not followed."""
    source = (
        '#include "a.h"\n// #include "b.h"\n#include <c.h>\nchar *s = "#include \\"d.h\\"";\n#ifdef E\n#include "e.h"'
    )
    assert normalise(source).includes == ("a.h", "e.h")


def test_unbalanced_quotes_are_survived() -> None:
    """An apostrophe in an #error, or an unfinished string, swallows nothing that follows."""
    source = "#error don't\nint x; // gone\n"
    assert normalise(source).text == "# error don ' t\nint x ;"


TOKENS = [
    "a",
    "int",
    "42",
    "0x1p-3",
    ".5",
    '"s // t"',
    "'\\''",
    "+",
    "++",
    "->",
    "<<=",
    "(",
    ")",
    "{",
    ";",
    'R"(/* )"',
    "::",
]
GAPS = [" ", "\n", "\t \n", " /* x */ ", " // y\n", "/*\n*/", " \\\n ", "\r\n"]


@given(st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(GAPS)), max_size=12))
def test_what_stands_between_tokens_means_nothing(pieces: list[tuple[str, str]]) -> None:
    """Any tokens, with anything between them that is no token, mean what they mean with single spaces."""
    spread = "".join(token + gap for token, gap in pieces)
    assert normalise(spread).text == " ".join(token for token, _ in pieces)


@given(st.text(alphabet="ab1 '\"\\/*#\n()R.<>=", max_size=60))
def test_any_text_is_read(source: str) -> None:
    """Any text at all is read to its end, and a blank line before it changes nothing."""
    assert normalise("\n" + source) == normalise(source)


def test_includes_are_followed_transitively(tmp_path: Path) -> None:
    """Names are looked up beside the including file, then beside the sources, then in the given directories."""
    files = {
        "src/k.cu": '#include "inc/a.h"\n#include "far.h"\n',
        "src/inc/a.h": '#include "b.h"\n#include "c.h"\n#include "a.h"\n',
        "src/inc/b.h": "int b;",
        "src/c.h": '#include "gone.h"\n',
        "far/far.h": "int far;",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    followed = follow([tmp_path / "src/k.cu"], [tmp_path / "far"])
    assert {str(path.relative_to(tmp_path)) for path in followed.contents} == set(files)
    assert followed.unresolved == ((tmp_path / "src/c.h", "gone.h"),)
    absent = {str(path.relative_to(tmp_path)) for path in followed.absent}
    assert absent == {"src/far.h", "src/inc/c.h", "src/gone.h", "far/gone.h"}


@pytest.mark.parametrize(
    ("code", "names", "is_opaque"),
    [
        (r'asm(".incbin \"a.bin\"");', ("a.bin",), False),
        (r'asm(".incbin " "\"a.bin\"\n" ".byte 0");', ("a.bin",), False),
        ('asm(R"(.incbin "a.bin", 4)");', ("a.bin",), False),
        (r'asm(".include \"a.s\"");', ("a.s",), False),
        (r'asm(".incbin \"" FILE "\"");', (), True),
        (r'asm(".incbin " NAME "\n" ".section .text");', (), True),
        (r'asm(".macro take name\n.incbin \"\\name\"\n.endm\n take a.bin");', (), True),
        ("asm(TEXT(.incbin NAME));", (), True),
        ('// .incbin\nwidget.include("a.h"); auto said = ".include it"; incbin(x);', (), False),
    ],
)
def test_files_that_an_assembler_reads(code: str, names: tuple[str, ...], is_opaque: bool) -> None:
    """They count as includes do; where macros make the name, the source says that it is not known."""
    found = normalise(code)
    assert (found.includes, found.is_opaque) == (names, is_opaque)
