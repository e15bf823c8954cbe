#!/usr/bin/env python3
"""Feeds tools/check_source small trees, good and bad, and expects it to name what is bad."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_source")


def load():
    loader = importlib.machinery.SourceFileLoader("check_source", TOOL)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_source", loader))
    sys.modules["check_source"] = module
    loader.exec_module(module)
    return module


check_source = load()
MODULES = "include/unisono:\nbase:\nwire: base\nschedules: base wire/peer_id.h\nnode: above\n"
GOOD_HEADER = "// It says what it is.\n#pragma once\n"
GOOD = {
    "tools/modules.txt": MODULES,
    "include/unisono/status.h": GOOD_HEADER + "#include <string>\n",
    "src/base/bytes.h": GOOD_HEADER + '#include "unisono/status.h"\n',
    "src/wire/frame.h": GOOD_HEADER + '#include "base/bytes.h"\n',
    "src/wire/peer_id.h": GOOD_HEADER,
    "src/node/node.cc": '#include "wire/frame.h"\n#include "base/bytes.h"\n#include <hwy/highway.h>\n',
}


class Tree(unittest.TestCase):
    def problems(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**GOOD, **files}.items():
                if text is None:
                    continue
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            return check_source.check_tree(root)[0]

    def expect(self, files, rule, path, line=None):
        found = self.problems(files)
        self.assertEqual([(problem.rule, problem.path) for problem in found], [(rule, path)], [str(p) for p in found])
        if line is not None:
            self.assertEqual(found[0].line, line)
        return found[0]

    def expect_good(self, files):
        self.assertEqual([str(problem) for problem in self.problems(files)], [])


class Includes(Tree):
    def test_a_good_tree_has_no_problems(self):
        self.expect_good({})

    def test_a_module_above_is_refused(self):
        self.expect({"src/base/clock.cc": '\n#include "wire/frame.h"\n'}, "include", "src/base/clock.cc", 2)

    def test_angle_brackets_do_not_hide_a_module(self):
        self.expect({"src/base/clock.cc": "#include <wire/frame.h>\n"}, "include", "src/base/clock.cc")

    def test_a_path_upwards_does_not_hide_a_module(self):
        self.expect({"src/base/clock.cc": '#include "../wire/frame.h"\n'}, "include", "src/base/clock.cc")

    def test_a_single_header_may_be_allowed(self):
        self.expect_good({"src/schedules/ring.h": GOOD_HEADER + '#include "wire/peer_id.h"\n'})
        self.expect({"src/schedules/ring.cc": '#include "wire/frame.h"\n'}, "include", "src/schedules/ring.cc")

    def test_above_means_the_modules_listed_before(self):
        self.expect(
            {"src/wire/frame.cc": '#include "node/node.h"\n', "src/node/node.h": GOOD_HEADER}, "include", "src/wire/frame.cc"
        )

    def test_a_module_that_the_table_lacks_is_refused(self):
        self.expect({"src/magic/wand.cc": '#include "base/bytes.h"\n'}, "include", "src/magic/wand.cc")

    def test_a_header_that_is_not_there_is_refused(self):
        self.expect({"src/node/a.cc": '#include "base/nothing.h"\n'}, "include", "src/node/a.cc")

    def test_the_api_includes_the_standard_library_only(self):
        path = "include/unisono/group.h"
        self.expect_good({path: GOOD_HEADER + '#include <span>\n#include <stdint.h>\n#include "unisono/status.h"\n'})
        self.expect({path: GOOD_HEADER + "#include <fmt/format.h>\n"}, "include", path)
        self.expect({path: GOOD_HEADER + "#include <experimental/simd>\n"}, "include", path)
        self.expect({path: GOOD_HEADER + "#include <unistd.h>\n"}, "include", path)
        self.expect({path: GOOD_HEADER + '#include "base/bytes.h"\n'}, "include", path)

    def test_only_tests_include_what_tests_share(self):
        shared = {"tests/conformance/suite.h": GOOD_HEADER}
        text = '#include "../../tests/conformance/suite.h"\n'
        self.expect_good({**shared, "src/base/a_test.cc": text})
        self.expect({**shared, "src/base/a.cc": text}, "include", "src/base/a.cc")

    def test_a_comment_includes_nothing(self):
        self.expect_good({"src/base/clock.cc": '// #include "wire/frame.h"\n/*\n#include "wire/frame.h"\n*/\n'})

    def test_a_cycle_is_named_once(self):
        files = {"src/base/a.h": GOOD_HEADER + '#include "base/b.h"\n', "src/base/b.h": GOOD_HEADER + '#include "base/c.h"\n',
                 "src/base/c.h": GOOD_HEADER + '#include "base/a.h"\n'}
        problem = self.expect(files, "cycle", "src/base/c.h", 3)
        self.assertEqual(problem.text, "src/base/a.h -> src/base/b.h -> src/base/c.h -> src/base/a.h")

    def test_a_diamond_is_no_cycle(self):
        self.expect_good({"src/base/a.h": GOOD_HEADER + '#include "base/b.h"\n#include "base/c.h"\n',
                          "src/base/b.h": GOOD_HEADER + '#include "base/d.h"\n',
                          "src/base/c.h": GOOD_HEADER + '#include "base/d.h"\n', "src/base/d.h": GOOD_HEADER})

    def test_without_a_table_it_fails(self):
        self.assertTrue(self.problems({"tools/modules.txt": ""}))


class TableOfArchitecture(Tree):
    TABLE = ("# The shape\n\n| module | may include | must never, and why |\n|---|---|---|\n"
             "| `include/unisono` | std only | `src/` |\n| `base` | include | all else |\n| `wire` | base | codecs |\n"
             "| `codecs`, `compressors` | wire, base | node |\n| `node` | all of the above | torch |\n\nMore text.\n")

    def test_is_read(self):
        table = check_source.table_of_architecture(self.TABLE)
        self.assertEqual(table["include/unisono"], set())
        self.assertEqual(table["compressors"], {"wire", "base"})
        self.assertEqual(table["node"], {"include/unisono", "base", "wire", "codecs", "compressors"})

    def test_goes_before_the_file(self):
        files = {"ARCHITECTURE.md": self.TABLE, "tools/modules.txt": MODULES.replace("base:", "base: wire")}
        self.expect_good(files)
        self.expect({**files, "src/base/a.cc": '#include "wire/frame.h"\n'}, "include", "src/base/a.cc")

    def test_a_page_without_the_table_leaves_the_file(self):
        self.expect_good({"ARCHITECTURE.md": "# The shape\n"})


class Lists(Tree):
    TABLES = {
        "include/unisono/schedules.h": GOOD_HEADER + "enum class ScheduleKind { ring, tree, direct };\n"
            + "".join(f'{{.kind = {name},\n .name = "{name}"}},\n' for name in ("ring", "tree", "direct")),
        "include/unisono/codec_facts.h": GOOD_HEADER
            + "".join(f'{{.kind = StepCodec::Kind::{name}, .name = "{name}"}},\n' for name in ("plain", "f16", "fp8")),
        "include/unisono/transports.h": GOOD_HEADER + "".join(f'{{.name = "{name}"}},\n' for name in ("auto", "shm", "tcp")),
    }

    def test_the_tables_themselves_and_two_names_pass(self):
        self.expect_good(
            {**self.TABLES, "src/base/a.cc": 'f("ring", "tree");\n', "src/base/a_test.cc": 'f("ring", "tree", "direct");\n'}
        )

    def test_a_second_list_of_names_is_refused(self):
        self.expect({**self.TABLES, "src/base/a.cc": 'f({"ring", "tree",\n   "direct"});\n'}, "list", "src/base/a.cc", 1)
        self.expect({**self.TABLES, "tools/a.py": 'NAMES = ["auto", "shm", "tcp"]\n'}, "list", "tools/a.py", 1)

    def test_a_second_list_of_enumerators_is_refused(self):
        kinds = "".join(f"case StepCodec::Kind::{name}: return;\n" for name in ("plain", "f16", "fp8"))
        self.expect({**self.TABLES, "src/base/a.cc": "\n" + kinds}, "list", "src/base/a.cc", 2)
        self.expect(
            {**self.TABLES, "src/base/a.cc": "using enum ScheduleKind;\nf({ring, tree, direct});\n"}, "list", "src/base/a.cc", 2
        )

    def test_names_far_from_each_other_and_in_comments_are_no_list(self):
        self.expect_good(
            {
                **self.TABLES,
                "src/base/a.cc": 'f("ring");\n'
                + "\n" * 5
                + 'f("tree");\n'
                + "\n" * 5
                + 'f("direct");\n// "ring", "tree", "direct"\n',
            }
        )

    def test_where_schedules_are_made_they_may_be_named(self):
        self.expect_good({**self.TABLES, "src/schedules/make.cc": 'f({"ring", "tree", "direct"});\n'})

    def test_a_list_that_must_be_written_out_lacks_nothing(self):
        options = 'Schedule = Literal["automatic", "ring", {}"direct"]\ntransport: Literal["auto", "shm", "tcp"] = "auto"\n'
        self.expect_good({**self.TABLES, "python/unisono/_options.py": options.format('"tree", ')})
        problem = self.expect(
            {**self.TABLES, "python/unisono/_options.py": options.format("")}, "list", "python/unisono/_options.py", 1
        )
        self.assertIn("tree", problem.text)


class Sizes(Tree):
    @staticmethod
    def function(lines, head="void f()"):
        return head + " {\n" + "  g();\n" * (lines - 2) + "}\n"

    def test_a_function_of_70_lines_passes_and_of_71_fails(self):
        self.expect_good({"src/base/a.cc": self.function(70)})
        problem = self.expect({"src/base/a.cc": "\n" + self.function(71)}, "function", "src/base/a.cc", 2)
        self.assertEqual((problem.key, problem.amount), ("f", 71))

    def test_a_test_function_may_have_120(self):
        self.expect_good({"src/base/a_test.cc": self.function(120, "TEST(A, b)")})
        problem = self.expect({"src/base/a_test.cc": self.function(121, "TEST(A, b)")}, "function", "src/base/a_test.cc")
        self.assertEqual(problem.key, "TEST(A, b)")

    def test_headers_250_sources_500_tests_too(self):
        self.expect_good(
            {"src/base/a.h": GOOD_HEADER + "\n" * 248, "src/base/a.cc": "\n" * 500, "src/base/a_test.cc": "\n" * 500}
        )
        self.expect({"src/base/a.h": GOOD_HEADER + "\n" * 249}, "size", "src/base/a.h")
        self.expect({"src/base/a.cc": "\n" * 501}, "size", "src/base/a.cc")
        self.expect({"src/base/a_test.cc": "\n" * 501}, "size", "src/base/a_test.cc")

    def test_python_counts_too(self):
        self.expect({"tools/a.py": "def f():\n" + "    g()\n" * 70}, "function", "tools/a.py", 1)

    def test_an_exception_holds_until_the_breach_grows(self):
        exception = "function src/base/a.cc:f 80 the table of cases is one thing\n"
        self.expect_good({"src/base/a.cc": self.function(80), "tools/check_exceptions.txt": exception})
        self.expect({"src/base/a.cc": self.function(81), "tools/check_exceptions.txt": exception}, "function", "src/base/a.cc")
        self.expect({"src/base/b.cc": self.function(80), "tools/check_exceptions.txt": exception}, "function", "src/base/b.cc")


class Functions(unittest.TestCase):
    """The brace matcher, over the shapes of function that the code style knows."""

    def expect(self, text, *expected):
        self.assertEqual(check_source.functions_of(text), list(expected))

    def test_plain_nested_and_in_scopes(self):
        self.expect(
            "namespace a::b {\nnamespace {\nint f(int x) {\n  if (x) {\n    return 1;\n  }\n  return 0;\n}\n}\n}\n", ("f", 3, 6)
        )

    def test_methods_constructors_and_access_labels(self):
        self.expect("class A final : public B {\n public:\n  explicit A(int x) : x_(x), y_{1}, z_{x} {\n    g();\n  }\n"
                    "  ~A() override { h(); }\n private:\n  int x_ = 0;\n  std::atomic<int> y_{0};\n};\n",
                    ("A", 3, 3), ("~A", 6, 1))

    def test_signatures_over_several_lines(self):
        self.expect("Result<int> f(\n    int a,\n    int b)\n{\n  return a;\n}\n", ("f", 1, 6))

    def test_defaults_in_braces_do_not_end_a_signature(self):
        self.expect("void f(const Options& o = {}) {\n  g();\n}\nvoid h(Counts c = {}, int = 1);\n", ("f", 1, 3))

    def test_trailing_types_qualifiers_templates_and_operators(self):
        self.expect("template <typename T, typename U = std::vector<T>>\nauto f(T x) -> Result<int> {\n}\n", ("f", 1, 3))
        self.expect(
            "struct S {\n  bool operator==(const S&) const noexcept {\n    return true;\n  }\n  operator bool() const { return 1; }\n};\n",
            ("operator==", 2, 3),
            ("operator bool", 5, 1),
        )
        self.expect("struct Pair make(int a) {\n  return {a, a};\n}\n", ("make", 1, 3))
        self.expect('__attribute__((target("sse4.2"))) int f(int x) {\n}\n', ("f", 1, 2))

    def test_values_are_no_functions_and_lambdas_of_the_namespace_are(self):
        self.expect("constexpr int a[] = {\n  1,\n  2,\n};\nenum class E : uint8_t { x = 0, y };\nBoard board{1, 2};\n")
        self.expect("const auto f = [](int x) {\n  return x;\n};\n", ("f", 1, 3))

    def test_braces_in_literals_comments_and_macros_do_not_count(self):
        self.expect(
            "#define OPEN {\n#define MORE \\\n  { {\nvoid f() {\n  // }\n  g(\"}}\\\"\", '}', R\"x(}})x\"); /* } */\n  int a = 1'000;\n}\n",
            ("f", 4, 5),
        )

    def test_unmatched_braces_are_an_error(self):
        for text in ("void f() {\n", "}\n", "namespace a {\n"):
            with self.assertRaises(ValueError):
                check_source.functions_of(text)


class Words(Tree):
    def test_sleeps_in_tests_are_refused_and_elsewhere_allowed(self):
        for call in ("std::this_thread::sleep_for(x)", "usleep(5)", "nanosleep(&a, &b)", "sleep(1)", "::sleep (1)"):
            self.expect({"src/base/a_test.cc": f"void f() {{ {call}; }}\n"}, "sleep", "src/base/a_test.cc")
            self.expect_good({"src/base/a.cc": f"void f() {{ {call}; }}\n"})
        self.expect({"tests/process/a_test.py": "import time\ntime.sleep(1)\n"}, "sleep", "tests/process/a_test.py", 2)
        self.expect({"tests/process/run.sh": "a; sleep 1\n"}, "sleep", "tests/process/run.sh")

    def test_words_about_sleep_are_no_sleep(self):
        self.expect_good({"src/base/a_test.cc": '// never sleep(1)\nvoid f() { g("sleep(1)"); may_sleep(2); }\n'})

    def test_a_long_line_is_refused_but_for_the_texts_of_python(self):
        long = "x" * 128
        self.expect({"src/base/a.cc": f"// fits\n//{long}\n"}, "line", "src/base/a.cc", 2)
        self.expect({"src/base/a.cc": f'const char* help = R"(\n{long}x\n)";\n'}, "line", "src/base/a.cc", 2)
        self.expect({"tests/a.py": f"a = {long}\n"}, "line", "tests/a.py", 1)
        self.expect({"tests/a.py": f'"""Fits.\n\n{long}x"""\n'}, "line", "tests/a.py", 3)
        self.expect_good(
            {"src/base/a.cc": f"{long}\n", "tests/a.py": f'a = """\n{long}x\n"""\nb = f"{long}"\n', "README.md": f"{long}x\n"}
        )

    def test_numbers_are_not_joined_with_plus(self):
        for chain in ('"a" + std::to_string(n)', "std::to_string(f(n, g(h()))) + x", "a +\n  std::to_string(n)"):
            self.expect({"src/base/a.cc": f"auto x =\n {chain};\n"}, "text", "src/base/a.cc")
            self.expect_good({"examples/a.cc": f"auto x =\n {chain};\n"})
        self.expect_good(
            {"src/base/a.cc": 'x += std::to_string(n); concat("a", std::to_string(n)); // a + std::to_string(n)\n'}
        )

    def test_one_name_is_one_type_of_a_namespace(self):
        one = GOOD_HEADER + "namespace a::b {\nstruct Finding final : Base {\n};\n}  // namespace a::b\n"
        self.expect(
            {"src/base/a.h": one, "src/base/b.h": one.replace("struct", "enum class").replace(" final : Base", " : int")},
            "name",
            "src/base/b.h",
        )
        self.expect_good({"src/base/a.h": one, "src/base/b.h": one.replace("a::b", "a::c")})
        self.expect_good({"src/base/a.h": one, "src/base/b.h": one.replace("struct", "  struct")})
        self.expect_good({"src/base/a.h": one, "src/base/b.h": one.replace("Finding final", "Finding::Part final")})

    def test_a_header_needs_a_comment_and_a_guard(self):
        self.expect({"src/base/a.h": "#pragma once\n// late\n"}, "header", "src/base/a.h")
        self.expect({"src/base/a.h": "// What.\n#include <string>\n"}, "header", "src/base/a.h")
        self.expect_good({"include/unisono/c.h": "/* What. */\n#ifndef UNISONO_C_H\n#define UNISONO_C_H\n#endif\n"})

    def test_words_of_one_machine_are_refused(self):
        for word in check_source.FORBIDDEN:
            self.expect({"README.md": f"fine\nsee {word} x\n"}, "word", "README.md", 2)


class CommandLine(Tree):
    def test_ends_with_1_and_says_where(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "src", "base"))
            with open(os.path.join(root, "src", "base", "a.h"), "w") as file:
                file.write("int x;\n")
            answer = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True)
        self.assertEqual(answer.returncode, 1)
        self.assertIn("src/base/a.h:1: header:", answer.stdout)


class Comments(Tree):
    def test_a_sentence_without_a_subject_is_named(self):
        for comment in (
            "Of those that are done.",
            "To be asked for once.",
            "Who waits, waits long.",
            "What is left over.",
            "Gives it to who asks.",
        ):
            found = self.problems({"src/base/a.cc": f"// {comment}\n"})
            self.assertEqual(
                [(problem.rule, problem.path, problem.line) for problem in found], [("comment", "src/base/a.cc", 1)], comment
            )
            found = self.problems({"src/base/a.cc": f"int a;  // {comment}\n"})
            self.assertEqual([problem.rule for problem in found], ["comment"], comment)

    def test_other_sentences_pass(self):
        for comment in (
            "Of course it waits.",
            "What if it fails?",
            "A rank that waits, who is named.",
            "The bytes of those ranks.",
            "It says what it is.",
        ):
            self.expect_good({"src/base/a.cc": f"// {comment}\n"})
        self.expect_good({"src/base/a.cc": 'const char* a = "// Of those";\n'})

    def test_a_few_of_a_thousand_are_let_pass(self):
        good = "// It is.\nint a;\n" * 200
        self.expect_good({"src/base/a.cc": good + "// Of those.\n"})
        self.assertEqual(len(self.problems({"src/base/a.cc": good + "// Of those.\nint b;\n// Who waits.\n"})), 2)


if __name__ == "__main__":
    unittest.main()
