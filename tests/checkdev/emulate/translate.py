#!/usr/bin/env python3
"""Copies the CUDA sources of a folder for a C++ compiler: statements of assembly become calls of emulate.h, shared
memory becomes static, and each kernel a function that takes a pointer to its arguments.  NAME.cu becomes NAME.cpp.

    translate.py SOURCE_FOLDER TARGET_FOLDER
"""
import os
import re
import sys


def closing(text, at):
    """The place of the parenthesis that closes the one at `at`; strings count for nothing."""
    depth, i = 0, at
    while True:
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1


def parts(text, sep):
    """The pieces of text between separators that stand in no parenthesis and no string."""
    out, start, i = [], 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            i = closing(text, i)
        elif c == sep:
            out.append(text[start:i])
            start = i + 1
        i += 1
    return out + [text[start:]]


def call(statement):
    sections = parts(statement, ":")
    words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0]))
    operands = []
    for section in sections[1:3]:
        for operand in parts(section, ","):
            found = re.match(r'\s*"[^"]*"\s*\(', operand)
            if found:
                operands.append(operand[found.end():closing(operand, found.end() - 1)])
    return 'emulate_%s("%s"%s)' % (re.search(r"[a-z]\w*", words.replace("\\n", " ")).group(), words,
                                   "".join(", " + o.strip() for o in operands))


def translate(text):
    text = text.replace("#include <cuda_fp16.h>", "")
    out, at = [], 0
    for m in re.finditer(r"\basm(\s+volatile)?\s*\(", text):
        if m.start() < at:
            continue
        end = closing(text, m.end() - 1)
        out += [text[at:m.start()], call(text[m.end():end])]
        at = end + 1
    text = "".join(out) + text[at:]
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) shared\[\];", r"\1 *const shared = (\1 *)emulate_shared;", text)
    return re.sub(r"#define TERN_CUDA_KERNEL_BEGIN\(.*?(?=\n\n)",
                  "#define TERN_CUDA_KERNEL_BEGIN(name, args, threads, blocks) EMULATE_KERNEL(name, args)", text, flags=re.S)


def main():
    source, target = sys.argv[1:3]
    for folder, _, names in os.walk(source):
        for name in names:
            path = os.path.join(folder, name)
            to = os.path.join(target, os.path.relpath(path, source))
            if not name.endswith((".cu", ".cuh")):
                continue
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(path, encoding="utf-8") as f:
                text = translate(f.read())
            with open(re.sub(r"\.cu$", ".cpp", to), "w", encoding="utf-8") as f:
                f.write(text)


if __name__ == "__main__":
    main()
