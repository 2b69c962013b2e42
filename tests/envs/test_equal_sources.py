"""Sources that are the same code."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.problem import Problem
from pkb_gym.envs.equal_sources import MAX_CHARS, code_of
from pkb_gym.problems.catalogue import catalogue, reference_source
from tests.whole_tables import examples

NATIVE = """#include "pkb/symm.h"
// Adds.
void solution(int a) {  /* nothing */
  const char* text = "a // b  /* c */";
  const int many = 1'000'000; const char quote = '"';
  auto raw = R"x(
    // kept   as it is
  )x";
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
PYTHON = '''import torch


def solution(x):
    # of x
    text = """a # b"""
    if x:
        x = x + 1
    return x
'''


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (NATIVE, "// Adds.\n", ""),
        (NATIVE, "// Adds.", '// Adds,\\\n on two lines; don\'t "mind" the quotes.'),
        (NATIVE, "  /* nothing */", "\t/* draw\n * again */ "),
        (NATIVE, "\nvoid", "\r\n\n\n   void"),
        (NATIVE, "solution);\n", "solution); // 2"),
        (NATIVE, "int many = 1", "int many=1"),
        (NATIVE, "int many = 1", "int/**/many=/* draw again */1"),
        (NATIVE, "}\nTVM", "} TVM"),
        (NATIVE, "\n// Adds", " // Adds"),
        (NATIVE, "(solution, solution)", "( solution,\n solution )"),
        (NATIVE, "many", "ma\\\nny"),
        (NATIVE, "many", "ma\\ \r\nny"),
        (NATIVE, "void", "vo\\\n\\\nid"),
        (NATIVE, '#include "', '  # /* again\n */ include"'),
        (PYTHON, "    # of x\n", ""),
        (PYTHON, "return x\n", "return  x  # again"),
        (PYTHON, "torch\n", "torch\n\n\n# again\n"),
        (PYTHON, "    ", "  "),
        (PYTHON, "\n", "\r\n"),
    ],
)
def test_comments_and_blanks_make_no_other_code(source: str, old: str, new: str) -> None:
    assert old in source and code_of(source.replace(old, new)) == code_of(source)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (NATIVE, "a // b  /*", "a // b /*"),
        (NATIVE, "c */", "d */"),
        (NATIVE, "// kept", "// lost"),
        (NATIVE, "// kept   as", "// kept as"),
        (NATIVE, "// kept   as", "// kept \\\n  as"),
        (NATIVE, "'\"'", "'''"),
        (NATIVE, "1'000'000", "1'000'001"),
        (NATIVE, "void solution", "voidsolution"),
        (NATIVE, '.h"\n// Adds.\nvoid', '.h" void'),
        (PYTHON, "a # b", "a # c"),
        (PYTHON, "        x = x + 1", "        x = x + 2"),
        (PYTHON, "    return x", "        return x"),
    ],
)
def test_anything_else_does(source: str, old: str, new: str) -> None:
    assert old in source and code_of(source.replace(old, new)) != code_of(source)


@pytest.mark.parametrize("problem", catalogue()[::20], ids=lambda problem: problem.name)
def test_a_python_module_that_holds_native_code_is_python(problem: Problem) -> None:
    """Its blanks at the beginning of lines are code."""
    source = reference_source(problem) + '\nNATIVE = """\n#include <cuda.h>\n"""\nif True:\n    x = 1\n'
    assert code_of(source) != code_of(source.replace("    x = 1", "    y = 1"))
    assert code_of(source) != code_of(source.replace("\n#include", "\n #include"))


@given(st.text(max_size=200))
@settings(max_examples=examples(100))
def test_any_text_is_equal_to_itself(text: str) -> None:
    assert code_of(text) == code_of(text)
    assert code_of(f"{NATIVE}{text}") == code_of(f"{NATIVE}{text}")


@pytest.mark.parametrize(
    "piece",
    [
        *("/*", '"', "'", 'R"(', "\n", "(", "//", "\\\n", 'R"x(', '"""', "#\n", " \\", "/* ' */"),
        *("\\'", '\\"', "'\"", "1'", "\\ ", "#define a(", "a", "1e+", "> >", 'u8R"(', "R"),
    ],
)
@pytest.mark.parametrize("head", ["#include <a>\n", "import a\n", "#include <a>\n'", '#include <a>\n"'])
def test_no_text_takes_long(head: str, piece: str) -> None:
    text = head + piece * ((MAX_CHARS - len(head)) // len(piece))
    began = time.process_time()
    code_of(text)
    assert time.process_time() - began < 5
    assert code_of("x" * MAX_CHARS + "y") == "x" * MAX_CHARS + "y"


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ("#define F(x) x\n", "#define F (x) x\n", False),
        ("#define F(x) x\n", "# define F( x )  x\n", True),
        ("#if defined(F)\n", "#if defined (F)\n", True),
        ("#define F 1\nint a;", "#define F 1 int a;", False),
        ("#define F R\"(1)\"\nint a;", "#define F R\"(1)\" int a;", False),
        ("int a = b + +c;", "int a = b ++c;", False),
        ("int a = b ++ + c;", "int a = b+++c;", True),
        ("vector<vector<int>> a;", "vector< vector<int> > a;", True),
        ("a<<<1, 2>>>();", "a <<< 1,2 >>> ();", True),
        ("char a = 'b'; // c", "char a='b';", True),
        ("auto a = FOOR\"(b // c)\";", "auto a = FOOR\"(b // d)\";", False),
        ("auto a = u8R\"(b // c)\";", "auto a = u8R\"(b // d)\";", False),
        ("#error don't // stop\n", "#error don't // go\n", False),
        ("long a = 1'0/*b*/;", "long a = 1'0;", True),
    ],
)  # fmt: skip
def test_native_code_is_compared_as_a_preprocessor_reads_it(one: str, other: str, are_equal: bool) -> None:
    """A blank where there was none, or a statement on a line of its own, was judged anew."""
    head = '#include "pkb/symm.h"\n'
    assert (code_of(head + one) == code_of(head + other)) is are_equal
