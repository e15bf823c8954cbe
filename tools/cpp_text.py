"""Reads C++ without a compiler, as far as tools/check_source needs: comments and literals, braces, functions."""

import re

LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
                      r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def blank(text, keep_preprocessor=False):
    """Comments and literals emptied and preprocessor lines removed; line numbers stay."""
    def empty(match):
        word = match.group(0)
        lines = "\n" * word.count("\n")
        return '""' + lines if word[0] in "\"R" else "0" if word[0] == "'" else lines or " "
    text = LITERALS.sub(empty, text)
    if keep_preprocessor:
        return text
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group(0).count("\n"), text, flags=re.MULTILINE)


def without_parentheses(head):
    depth, kept = 0, []
    for letter in head:
        depth -= letter in ")]"
        if depth <= 0:
            kept.append(letter)
        depth += letter in "(["
    return "".join(kept)


def kind_of_brace(head):
    """What a brace opens, outside of functions: "scope", "function", or "value" (an initialiser)."""
    head = re.sub(r"^\s*((public|private|protected)\s*:\s*)+", "", head)
    head = re.sub(r"^\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>", "", head.strip())
    flat = without_parentheses(re.sub(r"operator\s*(\(\s*\)|[^\s\w(]+)", "operator_", head))
    if re.search(r"\bnamespace\b|^\s*extern\s*\"\"\s*$", flat):
        return "scope"
    if re.match(r"\s*(typedef\s+)?((alignas|__attribute__)\s*\(+\)*\s*)*(class|struct|union|enum)\b", flat) and \
            not re.search(r"\)\s*(const|noexcept|override|final|->.*)?\s*$", flat.replace("alignas()", "")):
        return "scope"
    if re.search(r"(?<![=!<>])=(?!=)", flat):
        return "function" if re.search(r"\]\s*(\(\)[^=]*)?$", flat) else "value"
    if "(" not in flat:
        return "value"
    # Foo() : member_{…}: a name right before the brace, behind the colon of a list of initialisers.
    if re.search(r"\)\s*(noexcept(\(\))?)?\s*:(?!:)", flat) and re.search(r"[\w>]\s*$", flat):
        return "value"
    return "function"


def name_of(head):
    head = re.sub(r"^\s*template\s*<.*?>\s*(?=\w)", "", " ".join(head.split()))
    test = re.search(r"\b(TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(([^)]*)\)", head)
    if test:
        return f"{test.group(1)}({test.group(2).strip()})"
    found = re.search(r"([\w:~]+|operator\s*\S+)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)\s*(?=\w)", "", head))
    return found.group(1) if found else (head.split("=")[0].split() or ["?"])[-1]


def functions_of(text):
    """(name, first line, line count) of every function; the signature counts. Raises ValueError on unmatched braces."""
    text = blank(text)
    found, stack = [], []          # stack of (kind, head, first line of the head)
    head, start, line = "", 0, 1   # of the statement being read; start 0: not begun
    inside = 0                     # braces deep inside a function or value
    for letter in text:
        if letter == "\n":
            line += 1
        if inside:
            inside += (letter == "{") - (letter == "}")
            if inside == 0:
                kind, head, start = stack.pop()
                if kind == "function":
                    found.append((name_of(head), start, line - start + 1))
                    head, start = "", 0
                else:
                    head += "()"
        elif letter == "{":
            # A brace inside parentheses is a default argument or an initialiser.
            kind = "value" if head.count("(") > head.count(")") else kind_of_brace(head)
            stack.append((kind, head, start or line))
            inside = kind != "scope"
            if kind == "scope":
                head, start = "", 0
        elif letter == "}":
            if not stack:
                raise ValueError(f"a brace too many in line {line}")
            stack.pop()
            head, start = "", 0
        elif letter == ";":
            head, start = "", 0
        elif re.fullmatch(r"\s*(public|private|protected)\s*", head) and letter == ":":
            head, start = "", 0
        else:
            start = start or (line if not letter.isspace() else 0)
            head += letter
    if stack:
        raise ValueError(f"the brace of line {stack[-1][2]} is not closed")
    return found
