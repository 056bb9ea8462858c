#!/usr/bin/env python3
"""Writes tests/data/tokenizer/json-*: small vocabularies as tokenizer.json, set up as those of known families are.

    make_tokenizer_fixtures.py tests/data/tokenizer

Each is trained on the corpus of compare_tokenizers.py; the ids and the decoded texts beside it are those of Hugging Face
`tokenizers`.  A line of the .txt is  modes|ids|decoded|text : modes 0 without control tokens, 1 with them and with what
the post-processor adds; decoded, which leaves control tokens out, is empty where it is the text itself and - where there
is nothing.

Needs: tokenizers.
"""

import base64
import json
import os
import sys
import unicodedata

import compare_tokenizers as common

CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(endings, digits):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{endings}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{endings}"
            rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


# ---- parts of a tokenizer.json -----------------------------------------------------------------------------------

def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def byte_level(regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", kind="Regex", invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def around(*front):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}} for t in front] + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": front}


def token(content, special=True, normalized=False, **more):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
            "special": special} | more


SPACED = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIPPED = SPACED + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
DIGITS = {"type": "Digits", "individual_digits": True}
ENDS = [token("<|end|>"), token("<|end|>x")]


def charsmap(rules):
    """The normalizer "Precompiled": a double array over the keys (src/text/tok/charsmap.c has the layout)."""
    texts, root = b"", {}
    for key, text in rules.items():
        node = root
        for c in key.encode():
            node = node.setdefault(c, {})
        node[0] = len(texts)  # a key ends here
        texts += text.encode() + b"\0"
    units, taken = {0: 0}, {0}

    def place(node, at):
        base = next(b for b in range(1, 1 << 20) if not any((b ^ c) in taken for c in node))
        taken.update(base ^ c for c in node)
        units[at] |= (at ^ base) << 10 | (256 if 0 in node else 0)
        for c, child in node.items():
            units[base ^ c] = child | 1 << 31 if c == 0 else c
        for c, child in node.items():
            if c:
                place(child, base ^ c)

    place(root, 0)
    trie = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range(max(units) + 256))
    table = len(trie).to_bytes(4, "little") + trie + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


CHARS = {"ﬁ": "fi", "½": "1/2", "１": "1", "２": "2", "\u3000": " ", "\t": " ", "\u200b": "", "é": "e", "e\u0301": "e",
         "É": "E", "ſ": "s", "한": "HAN", "\r\n": " ", "ü": "ue", "u\u0308": "ue", "\u0308": "¨", "ß": "ss", "😀": ":)",
         "♨": "hot", "Å": "A", "A\u030a\u0301": "A!", "ы": "y"}


def bytes_bpe(pre, added=None, normalizer=None, post=None, **model):
    return dict(pre=pre, added=ENDS + (added or []), normalizer=normalizer, post=post, model=model,
                decoder=byte_level(True, True))


def char_bpe(pre, added, normalizer=None, decoder=None, **model):
    model = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>") | model
    return dict(pre=pre, added=[token("<unk>"), token("<s>")] + ENDS + added, normalizer=normalizer, post=around("<s>"),
                model=model, decoder=sequence("decoders", *(decoder or SPACED)))


FAMILIES = {
    "llama3": bytes_bpe(sequence("pretokenizers", split(LLAMA3), byte_level(False)), [token("<|begin|>")],
                        post=sequence("processors", byte_level(True), around("<|begin|>")), ignore_merges=True),
    "qwen3": bytes_bpe(sequence("pretokenizers", split(QWEN), byte_level(False)),
                       [token("<b>", special=False), token("</b>", special=False)], normalizer={"type": "NFC"}),
    "tekken": bytes_bpe(sequence("pretokenizers", split(cased("", "")), byte_level(False)), [token("<s>")],
                        post=around("<s>"), ignore_merges=True),
    "phi4": bytes_bpe(sequence("pretokenizers", split(LLAMA3), byte_level(False)),
                      [token("<|im|>", lstrip=True, rstrip=True), token("lamp", special=False, single_word=True)]),
    "glm4": bytes_bpe(sequence("pretokenizers", split(LLAMA3), byte_level(False)), [token("[gMASK]"), token("<sop>")],
                      post=around("[gMASK]", "<sop>")),
    "deepseek3": bytes_bpe(sequence("pretokenizers", *map(split, DEEPSEEK), byte_level(False)),
                           [token("<｜User｜>", special=False, normalized=True)],
                           normalizer=sequence("normalizers")),
    "smollm": bytes_bpe(sequence("pretokenizers", DIGITS, byte_level(True))),
    "gpt2": bytes_bpe(byte_level(True, prefix=True), [token("\n\n", special=False), token("  ", special=False)]),
    "llama4": bytes_bpe(sequence("pretokenizers", split(cased(CASELESS + "?", "{1,3}")), byte_level(False))),
    "falcon": bytes_bpe(sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True),
                                 {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
    "gemma": char_bpe(split(" ", "MergedWithPrevious", "String"),
                      [token("\n\n", special=False), token("▁▁▁", special=False), token("<b>", special=False)],
                      normalizer=replace(" ", "▁")),
    "phi3": char_bpe(None, [token("<|u|>", rstrip=True), token("</b>", special=False, rstrip=True)],
                     normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
                     decoder=STRIPPED),
    "mistral3": char_bpe(metaspace("first", False), [token("[INST]")], decoder=STRIPPED),
    "odd": char_bpe(sequence("pretokenizers", {"type": "WhitespaceSplit"},
                             split(r"\p{N}{2}", "MergedWithNext"), split(r"[a-z]+", "Contiguous", invert=True)),
                    [token("lamp", special=False, normalized=True, single_word=True)],
                    normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
                                        {"type": "Strip", "strip_left": True, "strip_right": True},
                                        replace(r"\d{3,}", "#", "Regex")),
                    byte_fallback=False),
    "unigram": dict(pre=metaspace("always", True), added=[token("<unk>"), token("<s>"), token("</s>")] + ENDS,
                    normalizer=sequence("normalizers", {"type": "NFKC"}, replace(" {2,}", " ", "Regex")), post=None,
                    model=None, decoder=metaspace("always", True)),
    "t5": dict(pre=sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always", True)),
               added=[token("<unk>"), token("<s>"), token("</s>")] + ENDS, post=None, model=None,
               normalizer=sequence("normalizers", charsmap(CHARS), replace(" {2,}", " ", "Regex")),
               decoder=metaspace("always", True)),
}


# ---- training ------------------------------------------------------------------------------------------------------

def corpus():
    return [unicodedata.normalize("NFC", line) for line in common.fixture_corpus().split("\n")]


def train(family):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    frame = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None,
             "normalizer": family["normalizer"], "pre_tokenizer": family["pre"], "decoder": family["decoder"]}
    empty = Tokenizer.from_str(json.dumps(frame | {"model": json.loads(Tokenizer(models.BPE()).to_str())["model"]}))
    bytes_ = family["decoder"]["type"] == "ByteLevel"
    if family["model"] is not None:
        trainer = trainers.BpeTrainer(vocab_size=400 if bytes_ else 460, show_progress=False, limit_alphabet=300 if bytes_ else 150,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_ else [],
                                      max_token_length=8)
    else:
        empty.model = models.Unigram()
        trainer = trainers.UnigramTrainer(vocab_size=500, show_progress=False, unk_token="<unk>",
                                          special_tokens=["<unk>", "<s>", "</s>"])
    lines = corpus() if bytes_ else common.SENTENCES[:20] * 2 + common.CODE
    empty.train_from_iterator(lines, trainer)
    return frame, json.loads(empty.to_str())["model"]


def number(tokens, vocab):
    """Added tokens with the ids that they have in the vocabulary, or the next free ones."""
    out = []
    for t in tokens:
        out.append({"id": vocab.setdefault(t["content"], len(vocab))} | t)
    return out


def build(family):
    frame, model = train(family)
    if model["type"] == "Unigram":
        ids = {t: i for i, (t, _) in enumerate(model["vocab"])}
        added = number(family["added"], ids)
    else:
        first = {t["content"]: i for i, t in enumerate(family["added"][:2])} if "unk_token" in family["model"] else {}
        if family["model"].get("byte_fallback"):
            first |= {"<0x%02X>" % b: len(first) + b for b in range(256)}
        order = sorted(model["vocab"], key=model["vocab"].get)
        model["vocab"] = first | {t: len(first) + i for i, t in enumerate(order)}
        model |= family["model"]
        added = number(family["added"], dict(model["vocab"]) if first else model["vocab"] | {})
    post = family["post"]
    for p in post.get("processors", [post]) if post else []:
        if "special_tokens" in p:
            names = {t["content"]: t["id"] for t in added}
            p["special_tokens"] = {t: {"id": t, "ids": [names[t]], "tokens": [t]} for t in p["special_tokens"]}
    return frame | {"added_tokens": sorted(added, key=lambda t: t["id"]), "post_processor": post, "model": model}


# ---- recording -----------------------------------------------------------------------------------------------------

def texts():
    more = ["the lamp lamps lamp-lamp_ lamp.", "a <|im|>  b", " <|u|>  x</b>  y", "[INST] hi", "a<s>b", "<｜User｜>a",
            "a▁▁▁b", "a   b", "a\n\nb", "Éa É 12345", "²³½ ٣٤٥ １２", "!!?a.b"]
    return list(dict.fromkeys(common.fixture_texts()[:70] + more))


def record(path, root):
    from tokenizers import Tokenizer
    controls = {t["content"] for t in root["added_tokens"] if t["special"] or t["content"].startswith("<｜")}
    special = Tokenizer.from_str(json.dumps(root | {"added_tokens": [t | {"special": t["content"] in controls}
                                                                     for t in root["added_tokens"]]}))
    plain_root = root | {"post_processor": None,
                         "added_tokens": [t for t in root["added_tokens"] if t["content"] not in controls]}
    plain = Tokenizer.from_str(json.dumps(plain_root))
    root_tokens = {t["id"]: t["content"] for t in root["added_tokens"]}
    back = {plain.token_to_id(t["content"]): t["id"] for t in plain_root["added_tokens"]}
    escape = lambda s: common.escape(s).replace("|", "\\x7c")
    with open(path, "w", encoding="utf-8") as f:
        f.write("# made by tools/make_tokenizer_fixtures.py\n")
        for text in texts():
            ids = [[back.get(i, i) for i in plain.encode(text, add_special_tokens=False).ids], special.encode(text).ids]
            # Unigram makes a control token of plain text that spells one; tern never does.
            modes = "1" if controls & {root_tokens.get(i) for i in ids[0]} else "01"
            for mode in ("01",) if ids[0] == ids[1] else modes:
                line = ids[int(mode[0])]
                decoded = special.decode(line, skip_special_tokens=True)
                decoded = "" if decoded == text else escape(decoded) or "-"
                f.write(f"{mode}|{' '.join(map(str, line))}|{decoded}|{escape(text)}\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, family in FAMILIES.items():
        root = build(family)
        path = os.path.join(sys.argv[1], "json-" + name)
        with open(path + ".json", "w", encoding="utf-8") as f:
            json.dump(root, f, ensure_ascii=False, separators=(",", ":"))
        record(path + ".txt", root)
        print(f"{path}.json: {os.path.getsize(path + '.json')} bytes, {os.path.getsize(path + '.txt')} bytes of ids")


if __name__ == "__main__":
    main()
