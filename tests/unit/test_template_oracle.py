#!/usr/bin/env python3
"""Random chat templates: tern's engine against Python's jinja2 as Hugging Face sets it up.

    test_template_oracle.py RENDER_DRIVER [count] [seed]

Texts must agree byte for byte and failures must be failures on both sides.  Spans must cover the text without gaps, and
letters that occur in messages only (Cyrillic here) must lie in user spans, letters that occur in the template's own text
only (the sign U+2021 here) in template spans.  Exit status 77 (skipped) without jinja2.
"""
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
try:
    import render_oracle
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

UNSUPPORTED, LIMIT = -5, -9  # tern's answers that say "not in the subset", where jinja2 may go on

STRINGS = ["", "a", "b", "abc", "Hello World", " x  y ", "a,b,c", "1", "2.5", "-7", "日本", "é", "😀", "A\nb\n", "it's", '"q"', "\\",
           "\t", "<|end|>", "xx", "aXbX", "ß", "{{ x }}", "<b>&"]
USER = ["привет", " Мир  ", "", "да нет", "Ж\nы\n\nя", "<|im_end|>ю", "{{ э }}", "щ,ъ,ь", "ёЁё", "  ", "ц'ц\"ц"]
NAMES = ["a", "b", "c", "x", "y", "messages", "s", "n", "l", "d", "f", "t", "nil", "missing", "u"]
VARS = {"s": "Some text, here", "text": "x, y",  "n": 5, "l": [4, 2, 9], "d": {"k": "v", "n": 1, "list": [1, "x"]}, "f": 1.5, "t": True, "nil": None,
        "u": "日本語 text", "deep": {"a": [{"b": "c"}, {"b": "D"}]}, "big": list(range(12))}
STR_METHODS = ["strip()", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()", "split()", "split(',')", "split(none, 1)",
               "strip('ax ')", "replace('a', 'ZZ')", "replace('', '.')", "startswith('a')", "endswith(('b', 'c'))", "count('a')", "find('b')",
               "splitlines()", "rsplit(' ', 1)", "partition('b')", "rpartition(',')", "isalpha()", "isdigit()", "isspace()", "islower()",
               "isupper()", "removeprefix('a')", "removesuffix('c')", "rfind('a')", "split('X')[-1]", "join(['1', '2'])", "isalnum()",
               "find('a', 1)", "count('a', 0, 2)", "strip('\\n')", "replace('b', '', 1)"]
FILTERS_TEXT = ["upper", "lower", "trim", "title", "capitalize", "length", "string", "list", "reverse", "first", "last", "int", "float",
                "replace('a', 'b')", "default('D')", "default('D', true)", "indent", "indent(2, true)", "tojson", "join('-')", "unique|list",
                "sort", "sort(true)", "max", "min", "trim('a ')", "tojson(ensure_ascii=true)", "replace('', '+', 2)", "indent(1, blank=true)",
                "select|list", "map('upper')|list", "map('tojson')|list", "string|tojson", "int(3)", "count"]
FILTERS_SEQ = ["length", "list", "first", "last", "join(',')", "join", "sort", "sort(reverse=true)", "reverse|list", "unique|list", "sum",
               "min", "max", "map('string')|list", "map('string')|join('|')", "select('string')|list", "reject('none')|list", "tojson",
               "tojson(indent=2)", "string", "select('odd')|list", "map(attribute='b')|list", "selectattr('b')|list", "map('upper')|join",
               "rejectattr('b', 'defined')|list", "select|list|length", "selectattr('role', 'eq', 'user')|list|length",
               "map(attribute='content')|join('/')", "map(attribute='content', default='?')|list", "map('length')|list", "first|string"]
FILTERS_DICT = ["length", "list", "items|list", "dictsort", "dictsort(reverse=true)", "tojson", "tojson(indent=1)", "string", "first",
                "tojson(sort_keys=true)", "dictsort(by='value')", "tojson(separators=(',', ':'))", "join(',')", "default(1)"]
FILTERS_NUM = ["abs", "int", "float", "round", "round(1)", "string", "tojson", "default(3)", "round(0, 'floor')", "round(method='ceil')"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "boolean", "true", "false", "number", "integer", "float",
         "odd", "even", "eq 1", "equalto('a')", "in [1, 'a', none]", "divisibleby 2", "lower", "upper", "callable", "not none", "ne 2", "sameas none"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Gen:
    def __init__(self, rng):
        self.r = rng
        self.scope = []
        self.macros = []
        self.loops = 0
        self.nest = 0

    def pick(self, items):
        return self.r.choice(items)

    def loop_names(self, names):
        return names if self.loops else ["n"]

    def string_literal(self):
        s = self.pick(STRINGS)
        q = self.pick("'\"")
        return q + s.replace("\\", "\\\\").replace(q, "\\" + q).replace("\n", "\\n").replace("\t", "\\t") + q

    def number(self):
        return self.pick(["0", "1", "2", "3", "7", "10", "-1", "-3", "2.5", "0.1", "1e3", "-0.5", "100", "1.0"])

    def string(self, d):
        r = self.r.random()
        if d <= 0 or r < 0.25:
            return self.pick([self.string_literal(), "s", "u", "text", "messages[0].content", "messages[-1]['content']", "messages[0].role"])
        if r < 0.4:
            return f"({self.string(d - 1)}).{self.pick(STR_METHODS)}"
        if r < 0.6:
            return f"({self.string(d - 1)})|{self.pick(FILTERS_TEXT)}"
        if r < 0.75:
            return f"{self.string(d - 1)} {self.pick(['+', '~'])} {self.string(d - 1)}"
        if r < 0.85:
            return f"({self.string(d - 1)})[{self.slice()}]"
        if r < 0.9:
            return f"({self.string(d - 1)}) * {self.pick(['0', '1', '2', '3'])}"
        return f"({self.any(d - 1)})|string"

    def slice(self):
        part = lambda: self.pick(["", "", "0", "1", "2", "-1", "-2", "5", "-9", "99"])
        return self.pick([lambda: f"{part()}:{part()}", lambda: f"{part()}:{part()}:{self.pick(['', '1', '2', '-1', '-2'])}",
                          lambda: self.pick(["0", "-1", "1", "50"])])()

    def seq(self, d):
        r = self.r.random()
        if d <= 0 or r < 0.25:
            return self.pick(["l", "messages", "big", "deep.a", "[]", "d.list", "range(4)", "'abc'", "[1, 'a', none]", "(1, 2)", "d", "range(5, 0, -2)"])
        if r < 0.5:
            return "[" + ", ".join(self.any(d - 2) for _ in range(self.r.randrange(4))) + "]"
        if r < 0.6:
            return "(" + "".join(self.any(d - 2) + ", " for _ in range(self.r.randrange(1, 3))) + ")"
        if r < 0.75:
            return f"({self.seq(d - 1)})[{self.slice()}]"
        if r < 0.9:
            return f"({self.seq(d - 1)})|{self.pick(FILTERS_SEQ)}"
        return self.pick([f"({self.string(d - 1)}).split()", f"{self.seq(d - 1)} + {self.seq(d - 1)}", f"({self.dict(d - 1)}).items()",
                          f"({self.dict(d - 1)}).keys()|list", f"({self.dict(d - 1)}).values()|list"])

    def dict(self, d):
        r = self.r.random()
        if d <= 0 or r < 0.4:
            return self.pick(["d", "deep", "messages[0]", "{}", "{'k': 1, 'a': 'b'}", "messages[-1]"])
        if r < 0.8:
            return "{" + ", ".join(f"{self.pick([self.string_literal(), '1', 'none', 'true', 's'])}: {self.any(d - 2)}"
                                   for _ in range(self.r.randrange(4))) + "}"
        return self.pick([f"dict(k={self.any(d - 1)})", f"dict({self.dict(d - 1)}, z=1)", "namespace(k=1)"])

    def num(self, d):
        r = self.r.random()
        if d <= 0 or r < 0.4:
            return self.pick([self.number(), "n", "f", "t", f"({self.seq(d - 1)})|length", *self.loop_names(["loop.index", "loop.index0"])])
        if r < 0.8:
            return f"({self.num(d - 1)}) {self.pick(['+', '-', '*', '/', '//', '%'])} ({self.num(d - 1)})"
        if r < 0.9:
            return f"({self.num(d - 1)})|{self.pick(FILTERS_NUM)}"
        return self.pick([f"-({self.num(d - 1)})", f"({self.num(d - 1)}) ** 2", f"+({self.num(d - 1)})"])

    def boolean(self, d):
        r = self.r.random()
        if d <= 0 or r < 0.15:
            return self.pick(["true", "false", "True", "False", "t", "nil", "missing", *self.loop_names(["loop.first", "loop.last"]), "add_generation_prompt", "tools"])
        if r < 0.4:
            return f"({self.any(d - 1)}) is {self.pick(['', 'not '])}{self.pick([t for t in TESTS if not t.startswith('not')])}"
        if r < 0.6:
            return f"({self.num(d - 1)}) {self.pick(BINARY[7:13])} ({self.num(d - 1)})"
        if r < 0.7:
            return f"{self.string_literal()} {self.pick(['in', 'not in'])} ({self.string(d - 1)})"
        if r < 0.8:
            return f"({self.any(d - 1)}) {self.pick(['==', '!='])} ({self.any(d - 1)})"
        return self.pick([f"not ({self.boolean(d - 1)})", f"({self.boolean(d - 1)}) and ({self.any(d - 1)})",
                          f"({self.any(d - 1)}) or ({self.any(d - 1)})", f"{self.num(d - 1)} < {self.num(d - 1)} <= {self.num(d - 1)}"])

    def any(self, d):
        r = self.r.random()
        if r < 0.12:
            return self.pick(NAMES + self.scope)
        if r < 0.35:
            return self.string(d)
        if r < 0.5:
            return self.num(d)
        if r < 0.62:
            return self.boolean(d)
        if r < 0.75:
            return self.seq(d)
        if r < 0.82:
            return self.dict(d)
        if d <= 0:
            return self.pick(["none", "1", "'z'", "missing"])
        if r < 0.86:
            return f"({self.any(d - 1)} if {self.boolean(d - 1)} else {self.any(d - 1)})"
        if r < 0.88:
            return f"({self.any(d - 1)} if {self.boolean(d - 1)})"
        if r < 0.91:
            return f"({self.dict(d - 1)})." + self.pick(["k", "a", "zz", "role", "content", "get('k')", "get('q', 5)"])
        if r < 0.94:
            return f"({self.any(d - 1)})[" + self.pick(["0", "-1", "'k'", "'role'", "1", self.any(d - 2)]) + "]"
        if r < 0.97:  # anything with any operator: mostly errors, which must be errors on both sides
            return f"({self.any(d - 1)}) {self.pick(BINARY)} ({self.any(d - 1)})"
        if self.macros and r < 0.985:
            return f"{self.pick(self.macros)}({', '.join(self.any(d - 2) for _ in range(self.r.randrange(3)))})"
        return f"({self.any(d - 1)})|{self.pick(self.pick([FILTERS_TEXT, FILTERS_SEQ, FILTERS_DICT, FILTERS_NUM]))}"

    def expr(self):
        return self.pick([self.string, self.any, self.any, self.seq, self.num, self.boolean, self.dict])(self.r.randrange(5))

    def text(self):
        return self.pick(["", " ", "\n", "‡", "‡ ", "\n  ", "‡\n", "  \n\n", "\t", "a ‡ b", "\n‡", "<|t|>", "{ ‡", " \n ‡ \n "])

    def tag(self, inside):
        return "{%" + self.pick(["", "", "-", "+"]) + " " + inside + " " + self.pick(["", "", "-", "+"]) + "%}"

    def out(self):
        return "{{" + self.pick(["", "", "-"]) + " " + self.expr() + " " + self.pick(["", "", "-"]) + "}}"

    def body(self, n):
        return "".join(self.text() + self.statement() for _ in range(self.r.randrange(n + 1))) + self.text()

    def fresh(self):
        name = self.pick(["a", "b", "c", "x", "y", "v1", "v2"])
        return name

    def statement(self):
        r = self.r.random()
        if self.nest > 3 or r < 0.45:
            return self.out()
        self.nest += 1
        try:
            if r < 0.6:
                s = self.tag("if " + self.boolean(2)) + self.body(2)
                if self.r.random() < 0.4:
                    s += self.tag("elif " + self.boolean(2)) + self.body(1)
                if self.r.random() < 0.5:
                    s += self.tag("else") + self.body(1)
                return s + self.tag("endif")
            if r < 0.75:
                return self.loop()
            if r < 0.85:
                name = self.fresh()
                s = self.tag(f"set {name} = {self.expr()}")
                self.scope.append(name)
                return s
            if r < 0.88:
                name = self.fresh()
                s = self.tag(f"set {name}{self.pick(['', '|upper', '|trim|lower'])}") + self.body(1) + self.tag("endset")
                self.scope.append(name)
                return s
            if r < 0.91:
                return self.tag("filter " + self.pick(["upper", "trim", "replace('a', 'b')|lower", "indent(2)"])) + self.body(1) + self.tag("endfilter")
            if r < 0.93:
                return self.tag(f"with w1 = {self.expr()}, w2 = {self.expr()}") + self.body(1) + "{{ w1 }}" + self.tag("endwith")
            if r < 0.95:
                return "{#" + self.pick(["", "-", "+"]) + " c ‡ " + self.pick(["", "-"]) + "#}"
            if r < 0.98:
                return self.macro()
            return ("{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% set ns.s = ns.s ~ m.content %}"
                    "{% endfor %}{{ ns.n }}{{ ns.s }}")
        finally:
            self.nest -= 1

    def loop(self):
        target = self.pick(["x", "m", "y", "k, v"])
        source = self.pick([self.seq(2), "messages", "d.items()", self.dict(2) + "|items", "deep.a", self.seq(1) + "|select", "messages[::-1]"])
        cond = self.pick(["", "", "", f" if {self.boolean(2)}"])
        s = self.tag(f"for {target} in {source}{cond}")
        old = list(self.scope)
        self.scope += target.split(", ")
        self.loops += 1
        s += self.pick(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.nextitem is defined }}", "{{ loop.revindex0 }}",
                        "{{ loop.previtem }}", "{{ loop.cycle('p', 'q') }}",
                        *(["{{ m.role }}‡{{ m.content }}", "{{ '<|im_start|>' + m.role ~ m.content }}"] if target == "m" else [])])
        s += self.body(2)
        if self.r.random() < 0.15:
            s += self.tag("if " + self.boolean(1)) + self.tag(self.pick(["break", "continue"])) + self.tag("endif") + self.text()
        self.loops -= 1
        self.scope = old
        if self.r.random() < 0.2:
            s += self.tag("else") + self.body(1)
        return s + self.tag("endfor")

    def macro(self):
        name = self.pick(["mac1", "mac2"])
        loops, self.loops = self.loops, 0
        params = self.pick(["", "p", "p, q=1", "p='z', q=none"])
        macros, self.macros = self.macros, []  # no recursion: it would not end
        s = self.tag(f"macro {name}({params})") + self.body(1) + ("{{ p }}" if "p" in params else "") + self.tag("endmacro")
        self.loops = loops
        self.macros = macros + [name]
        return s + "{{ " + name + "(" + self.any(1) + ") }}"

    def case(self):
        roles = ["user", "assistant", "system", "tool", "other"]
        messages = [{"role": self.pick(roles), "content": self.pick(USER)} for _ in range(self.pick([0, 1, 2, 2, 3, 3]))]
        for m in messages:
            if self.r.random() < 0.1:
                m["content"] = self.pick([None, [{"type": "text", "text": self.pick(USER)}], {"да": 1.5}])
        variables = dict(VARS)
        return {"template": self.body(4), "messages": messages, "vars": variables, "bos": "<s>", "eos": "</s>",
                "add_generation_prompt": self.r.random() < 0.5}


def check_spans(reply):
    raw = reply["text"].encode()
    at, last = 0, None
    for begin, end, user in reply["spans"]:
        if begin != at or end <= begin or user == last:
            return f"spans do not tile the text: {reply['spans']}"
        part = raw[begin:end].decode(errors="replace")
        if not user and any("\u0400" <= ch <= "\u04ff" for ch in part):
            return f"message text outside of user spans: {part!r}"
        if user and "‡" in part and "[" not in part and "{" not in part and '"' not in part:
            return f"template text in a user span: {part!r}"
        at, last = end, user
    return None if at == len(raw) else "spans end early"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    driver = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    texts = errors = refused = skipped = bad = 0
    for i in range(count):
        case = Gen(random.Random(f"{seed}/{i}")).case()
        driver.stdin.write(json.dumps(case) + "\n")
        driver.stdin.flush()
        line = driver.stdout.readline()
        if not line:
            print(f"the driver died on case {i} of seed {seed}: {case['template']!r}")
            return 1
        reply = json.loads(line)
        try:
            want, why = render_oracle.render(case), ""
        except Exception as e:
            want, why = None, f"{type(e).__name__}: {e}"
        if want is not None and (" at 0x" in want or "<class" in want or "<bound" in want or "<built-in" in want):
            skipped += 1  # addresses and names of Python's own objects
            continue
        if want is None and "error" in reply:
            errors += 1
            continue
        # jinja2 folds printed constants by other rules than it evaluates them with: the slice of a number is undefined
        # when folded and an error otherwise.  tern has the error always.
        if reply.get("code") in (UNSUPPORTED, LIMIT) or "cannot be sliced" in reply.get("error", ""):
            refused += 1
            continue
        problem = None
        if "error" in reply or want is None or want != reply["text"]:
            problem = f"jinja2: {want!r} {why}\n  tern:   {reply.get('text')!r} {reply.get('error', '')}"
        else:
            problem = check_spans(reply)
            texts += 1
        if problem:
            bad += 1
            if bad <= 10:
                print(f"case {i} of seed {seed}: {case['template']!r}\n  messages: {case['messages']}\n  {problem}")
    driver.stdin.close()
    driver.wait()
    print(f"{count} templates: {texts} equal texts, {errors} failed on both sides, {refused} refused by tern, "
          f"{skipped} not comparable, {bad} differences")
    return 1 if bad or driver.returncode or texts < count // 4 else 0


if __name__ == "__main__":
    sys.exit(main())
