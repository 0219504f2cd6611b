"""Reads Rust files for the checks in this folder: their code without tests, and their comments."""
import re
from dataclasses import dataclass, field

FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe )*fn (\w+)")
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|union|trait)\s+(\w+)", re.MULTILINE)
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.DOTALL)
TOKEN = re.compile(r"[A-Za-z_]\w*|'[a-z_]\w*|\d[\w.]*|::|->|=>|\.\.=?|[-+*/%^&|<>=!]=|&&|\|\||<<|>>|\S")
TEST = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(?:mod\s+(\w+)|fn\s+[^{;]*|impl[^{;]*)\s*([;{])")


@dataclass
class Comment:
    """Adjacent comment lines of one kind: `///`, `//!` or `//`."""

    line: int
    kind: str
    lines: list = field(default_factory=list)

    @property
    def is_doc(self):
        return self.kind != "//"

    @property
    def text(self):
        """The prose, without blocks of code."""
        return re.sub(r"\s+", " ", re.sub(r"```.*?(```|$)", " ", "\n".join(self.lines), flags=re.DOTALL)).strip()


def blank(text):
    """Replaces everything but line breaks by spaces."""
    return re.sub(r"[^\n]", " ", text)


def without_tests(code):
    """Blanks the tests of a file without comments and strings; also returns the names of its test files."""
    names = []
    while found := TEST.search(code):
        end = found.end()
        if found[2] == ";":
            names.append(found[1])
        else:
            depth = 1
            while depth and end < len(code):
                depth += {"{": 1, "}": -1}.get(code[end], 0)
                end += 1
        code = code[: found.start()] + blank(code[found.start() : end]) + code[end:]
    return code, names


class Source:
    """A file. `code` has the line numbers of `text`, but no comments, strings or tests."""

    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        bare = NOISE.sub(lambda noise: blank(noise[0]), self.text)
        self.code, self.test_files = without_tests(bare)
        self.tests = {line for line, (before, after) in enumerate(zip(bare.splitlines(), self.code.splitlines()), 1) if before != after}

    def tokens(self):
        """The number of tokens without comments and tests, in which a string is one token."""
        lines = NOISE.sub(lambda noise: "_" + blank(noise[0]) if noise[0][0] != "/" else blank(noise[0]), self.text).splitlines()
        return sum(len(TOKEN.findall(text)) for line, text in enumerate(lines, 1) if line not in self.tests)

    def comments(self):
        """The comments outside of tests, in their order."""
        found = []
        for noise in NOISE.finditer(self.text):
            kind = re.match(r"//[/!]?(?!/)|", noise[0])[0]
            line = self.text.count("\n", 0, noise.start()) + 1
            if not kind or line in self.tests:
                continue
            own_line = not self.text[self.text.rfind("\n", 0, noise.start()) + 1 : noise.start()].strip()
            last = found[-1] if found else None
            if not (last and own_line and last.kind == kind and last.line + len(last.lines) == line):
                found.append(Comment(line, kind))
            found[-1].lines.append(noise[0][len(kind) :])
        return found


def read(folder):
    """The sources of a crate's folder `src` that are no tests, by module: `("store", "table")`."""
    sources = {}
    for path in sorted(folder.rglob("*.rs")):
        parts = path.relative_to(folder).with_suffix("").parts
        sources[tuple(part for part in parts if part not in ("mod", "lib"))] = Source(path)
    tests = {(*module, test) for module, source in sources.items() for test in source.test_files}
    tests |= {module for module in sources if module and module[-1].endswith("tests")}
    return {module: source for module, source in sources.items() if not any(module[: len(test)] == test for test in tests)}


def functions(code):
    """The functions of a file, each with its lines from the signature to the closing brace."""
    lines = code.splitlines()
    for start, line in enumerate(lines):
        if match := FUNCTION.match(line):
            for end in range(start, len(lines)):
                text = lines[end].rstrip()
                # A trait may declare a function without a body, on one line or on several.
                if text == match[1] + "}" or text.endswith((";", "}")) and (end == start or text.startswith(match[1] + ")")):
                    break
            yield match[2], end - start + 1
