#!/usr/bin/env python3
"""Compares tern's token ids with those of other implementations, over a generated corpus.

    compare_tokenizers.py --program build/tern MODEL.gguf [MODEL.gguf ...]
    compare_tokenizers.py --program build/tests/tokenize_driver --batch VOCABULARY.gguf tokenizer.json ...
    compare_tokenizers.py --write-fixtures tests/data/tokenizer

The oracle is built from the vocabulary inside the GGUF file, so nothing else is downloaded:
  byte-level BPE   Hugging Face `tokenizers`: the merge list, and the pre-tokenizer that the file names
  score BPE        `sentencepiece` (a model of type BPE with the file's pieces, scores and types), and as a second
                   opinion Hugging Face BPE with merges derived from the scores.  The latter cannot express that two
                   ways to make one piece rank equal, so runs of one character may differ; it does not decide.

The program is asked as `PROGRAM tokenize -m MODEL --ids [--no-special]` with the text on stdin; it prints the ids as
JSON or separated by commas or spaces.  A leading BOS that the file's rules add is ignored.  Besides the whole corpus,
single lines are compared: as many as --sample says, one run of the program each; or with --batch all of them, if the
program knows `--lines` (every line of the input is a text of its own, one line of ids for each).

The corpus is the same for the same seed and Unicode version.  Python 3.11 has Unicode 14, as have PCRE2 10.42 and the
Oniguruma in `tokenizers`; under a newer Python the few characters assigned since then may differ in class.

Needs: tokenizers, gguf, sentencepiece, protobuf.  Exit status 1 when anything differs.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import unicodedata

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

GPT2_LIKE = {"gpt-2", "smollm"}
LETTERS_AND_REST = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {
    "llama-bpe": LETTERS_AND_REST % "{1,3}",
    "dbrx": LETTERS_AND_REST % "{1,3}",
    "qwen2": LETTERS_AND_REST % "",
}
SAME_AS = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "dbrx", "deepseek-r1-qwen": "qwen2"}


# ---- corpus ---------------------------------------------------------------------------------------------------

SENTENCES = """\
The lamp on the third shelf hasn't worked since Tuesday, and nobody's told Martin.
We'll see what they've done; I'd rather you're early than late, she said, it'll be fine.
IT'S LATE, WE'RE TIRED, THEY'LL WAIT, I'VE HAD ENOUGH, YOU'D AGREE, I'M SURE, DON'T ASK.
Le garçon a mangé une crêpe à l'œuf près de la forêt ; « quelle journée ! » dit-il.
Größere Straßenbahnen fahren übermorgen über die Brücke, erzählte Jürgen beiläufig.
El niño preguntó: ¿dónde está mañana la cigüeña que vimos ayer? ¡Qué pregunta!
Amanhã não haverá pão na avó, só maçãs e um coração de açúcar.
Příliš mnoho žluťoučkých koní stálo u řeky, když začalo pršet.
Łódź płynęła źle, więc wróciliśmy pieszo przez gęsty las.
Az árvíztűrő gép egész éjjel zúgott, de senki sem hallotta.
Çağrı'nın şemsiyesi ılık rüzgârda uçtu, İzmir'e kadar gitti.
Tiếng chuông ở ngôi chùa cũ vẫn ngân vang mỗi buổi sớm mai.
Старый паровоз медленно шёл мимо жёлтых полей, и дети махали ему.
Їжак з'їв яблуко, а ґава дивилася на нього згори.
Το καΐκι γύρισε αργά το βράδυ γεμάτο ψάρια και γέλια.
הילד שאל את אמו מתי יגיע האביב, והיא חייכה בלי לענות.
كان القارب الصغير يعود كل مساء محمّلاً بالسمك والأخبار.
پیرمرد کتاب را بست و به باران گوش داد؛ می‌دانست که دیر است.
पुराना पुल बारिश में बह गया, इसलिए हम नाव से गए।
বৃষ্টি থামলে ছেলেরা মাঠে ঘুড়ি ওড়াতে গেল।
மழை பெய்ததால் சந்தை இன்று சீக்கிரமே மூடப்பட்டது.
ఈ రోజు ఉదయం చెరువులో నీళ్ళు చాలా చల్లగా ఉన్నాయి.
แมวตัวเล็กนอนอยู่บนหลังคาบ้านที่ทาสีใหม่เมื่อวานนี้
ផ្លូវទៅភូមិនេះលិចទឹករាល់រដូវវស្សា។
ငှက်ကလေးတစ်ကောင်သည် ပြတင်းပေါက်တွင် နားနေသည်။
昨天傍晚,河边的老榕树下坐着三个下棋的人,谁也不说话。
舊書店的燈還亮著,老闆說明天不開門。
雨が上がると、子どもたちは裏山へカブトムシを探しに行った。
오래된 시계가 열두 번 울리자 고양이가 잠에서 깼다.
გუშინ საღამოს მთაზე პირველი თოვლი მოვიდა.
Ծեր այգեպանը ամեն առավոտ ջրում էր վարդերը։
ልጁ በዝናብ ውስጥ እየሮጠ ወደ ቤት ገባ።
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎠᏂᏬᏂ; ᠮᠣᠩᠭᠣᠯ ᠬᠡᠯᠡ; ܐܪܡܝܐ; ދިވެހި
""".splitlines()

CODE = """\
static int count_rows(const struct table *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
\t\tif (t->row[i] != NULL && !(flags & 0xFF00u))
            total += t->row[i]->width * 2;
    return total > 1024 ? -1 : (int)total;
}
def load(path: str, *, strict=True) -> dict[str, list[int]]:
    '''Reads "path" and returns what's in it.'''
    with open(path, "rb") as f:
        return {k: [int(x, 16) for x in v.split(",")] for k, v in json.load(f).items()}
SELECT name, COUNT(*) AS n FROM lamps WHERE room <> 'hall' GROUP BY 1 HAVING n >= 10;
<table><tr><td class="a">1</td><td>&nbsp;</td></tr></table><h1>Title</h1><code>x = y</code>
let s = `${a}::${b}`; // => "a::b" ...
#include <stdio.h>\\n%s\\t%5.2f\\0
\\begin{equation} e^{i\\pi} + 1 = 0 \\end{equation}
{"id": 17, "tags": ["a", null, true], "u": "\\u00e9"}
x86_64-unknown-linux-gnu  v1.2.3-rc.1+build.45  192.168.0.255:8080  ~/.config/app.toml
""".splitlines()

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇳🇴🇯🇵", "🧑🏿‍🚀", "❤️‍🔥", "1️⃣", "☺️", "☺︎", "🤷🏻‍♀️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🫠", "♨", "🀄"]
SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", "\r", "\r\n", "\n\n", "\n\n\n\n", "\x0b", "\x0c", "\x85", "\xa0",
          "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f",
          "\u3000", "\ufeff", "\x1c", "\x1f"]
ODD = ["▁", "▁▁▁", "Ġ", "Ċ", "<0x41>", "<0x0A>", "<0xZZ>", "\x00", "\x01", "\x04", "\x7f", "\u0130", "\u017f", "\u212a",
       "'\u017f", "'S", "'lL", "'re'", "''s", "’s", "ﬁ", "½", "Ⅷ", "①", "٣٤٥", "१२३", "𝟙𝟚", "㍿", "﷽", "\ufffd", "\ue000",
       "\U000f0000", "\U0010ffff", "ĳ", "Ǆ", "ß", "ẞ", "ŉ", "ı", "한", "각", "\u1100\u1161\u11a8", "\uac00\u11a8",
       "\u212b", "\u2126", "\uf900", "e\u0301", "e\u0323\u0302", "e\u0302\u0323", "ক্ষ", "\u09c7\u09be", "q\u0307\u0323",
       "Zalgo\u0321\u031b\u0322\u0328\u0317\u0318\u031c\u031d"]


def assigned():
    out = []
    for c in range(1, 0x110000):
        category = unicodedata.category(chr(c))
        if category not in ("Cn", "Cs", "Co"):
            out.append(c)
    return out


def corpus_line(r, chars, marks, added):
    kind = r.randrange(20)
    if kind < 6:
        return r.choice(SENTENCES)
    if kind < 8:
        words = [w for s in r.sample(SENTENCES, 3) for w in s.split(" ")]
        r.shuffle(words)
        return r.choice(SPACES[:6] + [" "] * 6).join(words)
    if kind < 10:
        return r.choice(CODE)
    if kind == 10:  # a stretch of neighbouring characters, as a script has
        at = r.randrange(len(chars))
        return "".join(chr(c) for c in r.choices(chars[at:at + 60], k=r.randint(1, 40)))
    if kind == 11:  # characters from anywhere
        return "".join(chr(r.choice(chars)) for _ in range(r.randint(1, 20)))
    if kind == 12:  # piles of marks
        return "".join(r.choice("aeiounAEΑаक한") + "".join(r.choice(marks) for _ in range(r.randint(0, 4)))
                       for _ in range(r.randint(1, 12)))
    if kind == 13:
        return "".join(r.choice(SPACES) if r.random() < .7 else r.choice("ab1.é漢\n") for _ in range(r.randint(1, 25)))
    if kind == 14:
        return "".join(r.choice(EMOJI) if r.random() < .8 else r.choice(" a,") for _ in range(r.randint(1, 10)))
    if kind == 15:
        return " ".join(r.choice(["%d", "%x", "-%d", "%d.5", "1,%03d", "%de-7", "0b%s", "§%d"]) %
                        r.randrange(10 ** r.randint(1, 12)) for _ in range(r.randint(1, 8)))
    if kind == 16:
        return "".join(r.choice(ODD) if r.random() < .6 else r.choice([" ", "x", "7", "Wort"])
                       for _ in range(r.randint(1, 10)))
    if kind == 17:  # tokens written out, whole and cut
        out = ""
        for _ in range(r.randint(1, 5)):
            t = r.choice(added)
            out += r.choice(["", " ", "a", "\n"]) + (t if r.random() < .6 else t[:r.randint(0, len(t))])
        return out
    if kind == 18:
        return r.choice("=-_*#.aA 0─あ") * int(2 ** r.uniform(0, 9))
    return unicodedata.normalize(r.choice(["NFD", "NFC", "NFKD"]), r.choice(SENTENCES))


def make_corpus(n_bytes, seed, added):
    r = random.Random(seed)
    chars = assigned()
    marks = [chr(c) for c in chars if unicodedata.combining(chr(c))]
    lines, size = [], 0
    while size < n_bytes:
        line = corpus_line(r, chars, marks, added)
        lines.append(line)
        size += len(line.encode()) + 1
    text = "\n".join(lines).encode()[:n_bytes]
    return text.decode(errors="ignore")


# ---- vocabularies ---------------------------------------------------------------------------------------------

class Vocabulary:
    def __init__(self, path):
        import gguf
        fields = gguf.GGUFReader(path).fields

        def get(key, default=None):
            field = fields.get("tokenizer.ggml." + key)
            return default if field is None else field.contents()

        self.path = path
        self.model = get("model")
        self.pre = get("pre")
        self.tokens = get("tokens")
        self.types = get("token_type") or [NORMAL] * len(self.tokens)
        self.scores = get("scores")
        self.merges = [split_merge(m) for m in get("merges", [])]
        self.bos = get("bos_token_id")
        self.unknown = get("unknown_token_id")
        self.add_bos = get("add_bos_token", self.model == "llama" or SAME_AS.get(self.pre, self.pre) == "llama-bpe")
        self.add_space_prefix = get("add_space_prefix", self.model == "llama")

    def of_type(self, *types):
        return [t for t, y in zip(self.tokens, self.types) if y in types]


class JsonVocabulary:
    """A tokenizer.json: `tokenizers` itself is the oracle.  Without control tokens it gets a file without them."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.root = json.load(f)
        self.path = path
        self.model, self.pre = "tokenizer.json", self.root["model"].get("type", "BPE")
        vocab = self.root["model"]["vocab"]
        ids = dict(vocab) if isinstance(vocab, dict) else {t: i for i, (t, _) in enumerate(vocab)}
        ids |= {t["content"]: t["id"] for t in self.root["added_tokens"]}
        self.tokens = [""] * (max(ids.values()) + 1)
        for t, i in ids.items():
            self.tokens[i] = t
        self.bos, self.add_bos = None, False

    def is_control(self, t):
        text = t["content"]
        looks = (text[:2], text[-2:]) in (("<|", "|>"), ("<｜", "｜>")) and len(text) > 4
        return t["special"] or looks

    def of_type(self, *types):
        return [t["content"] for t in self.root["added_tokens"] if (CONTROL if self.is_control(t) else USER) in types]


def hf_json(v, special):
    from tokenizers import Tokenizer
    root = dict(v.root)
    if not special:
        root["added_tokens"] = [t for t in root["added_tokens"] if not v.is_control(t)]
        root["post_processor"] = None
    form = (root["normalizer"] or {}).get("type")
    if form in ("NFC", "NFD", "NFKC", "NFKD"):
        root["normalizer"] = None  # Python's tables: see hf_byte_level
    tokenizer = Tokenizer.from_str(json.dumps(root))
    ids = {t["content"]: t["id"] for t in root["added_tokens"]}
    theirs = {tokenizer.token_to_id(t): i for t, i in ids.items()}  # numbered anew where some are missing
    assert not special or all(a == b for a, b in theirs.items())
    n = len(v.root["model"]["vocab"])
    encode = lambda text: [theirs.get(i, i) if i >= n else i
                           for i in tokenizer.encode(text, add_special_tokens=special).ids]
    if root["normalizer"] == v.root["normalizer"]:
        return encode
    assert root["post_processor"] is None and not any(t["normalized"] for t in root["added_tokens"])
    return in_pieces(v, special, lambda text: encode(unicodedata.normalize(form, text)))


def split_merge(merge):
    gap = merge.index(" ", 1)
    return merge[:gap], merge[gap + 1:]


# ---- oracles --------------------------------------------------------------------------------------------------

def add_tokens(tokenizer, vocabulary, special):
    from tokenizers import AddedToken
    # SentencePiece looks for user-defined pieces after it has escaped spaces, so a literal U+2581 can be part of one.
    # (Where a prefix space belongs in front of each stretch of text, the normalizer would put one into the piece.)
    escaped = not vocabulary.add_space_prefix
    add = [AddedToken(t, normalized=escaped and " " in t, special=False) for t in vocabulary.of_type(USER)]
    if special:
        add += [AddedToken(t, normalized=False, special=True) for t in vocabulary.of_type(CONTROL, UNKNOWN)]
    if add:
        tokenizer.add_tokens(add)
    assert tokenizer.get_vocab_size() == len(set(vocabulary.tokens)), "an added token is missing from the vocabulary"


def set_pre_tokenizer(tokenizer, pre):
    from tokenizers import Regex, decoders, pre_tokenizers as pt
    pre = SAME_AS.get(pre, pre)
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = pt.ByteLevel(add_prefix_space=False, use_regex=True)
    elif pre == "smollm":
        tokenizer.pre_tokenizer = pt.Sequence([pt.Digits(individual_digits=True),
                                               pt.ByteLevel(add_prefix_space=False, use_regex=True)])
    else:
        tokenizer.pre_tokenizer = pt.Sequence([pt.Split(Regex(SPLITS[pre]), behavior="isolated"),
                                               pt.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()


def in_pieces(v, special, encode):
    """Cuts the text at added tokens, leftmost and longest first, and encodes only what lies between."""
    added = sorted(v.of_type(USER, CONTROL, UNKNOWN) if special else v.of_type(USER), key=len, reverse=True)
    ids = {t: v.tokens.index(t) for t in added}
    if not added:
        return encode
    cut = re.compile("(" + "|".join(map(re.escape, added)) + ")")
    return lambda text: [i for k, part in enumerate(cut.split(text)) if part
                         for i in ([ids[part]] if k % 2 else encode(part))]


def hf_byte_level(v, special):
    from tokenizers import Tokenizer, models
    ids = {t: i for i, t in enumerate(v.tokens)}
    ignore = SAME_AS.get(v.pre, v.pre) == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=v.merges, ignore_merges=ignore))
    set_pre_tokenizer(tokenizer, v.pre)
    add_tokens(tokenizer, v, special)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if SAME_AS.get(v.pre, v.pre) != "qwen2":
        return encode
    # NFC with Python's tables between the added tokens: the tables inside `tokenizers` are of Unicode 9, and leave
    # marks that are younger out of order.
    return in_pieces(v, special, lambda text: encode(unicodedata.normalize("NFC", text)))


def merges_from_scores(v):
    ids = {t: i for i, (t, y) in enumerate(zip(v.tokens, v.types)) if y == NORMAL}
    out = []
    for t, i in ids.items():
        for k in range(1, len(t)):
            if t[:k] in ids and t[k:] in ids:
                out.append((-v.scores[i], ids[t[:k]], ids[t[k:]], t[:k], t[k:]))
    return [(a, b) for _, _, _, a, b in sorted(out)]


def hf_scores(v, special):
    from tokenizers import Tokenizer, models, normalizers
    ids = {t: i for i, t in enumerate(v.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges_from_scores(v), byte_fallback=True, fuse_unk=True,
                                     unk_token=v.tokens[v.unknown]))
    steps = [normalizers.Replace(" ", "▁")]
    if v.add_space_prefix:
        steps.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    add_tokens(tokenizer, v, special)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def sentencepiece_scores(v, special):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto()
    for i, (t, y) in enumerate(zip(v.tokens, v.types)):
        kind = {NORMAL: 1, UNKNOWN: 2, CONTROL: 3, USER: 4, UNUSED: 5, BYTE: 6}[y]
        if i == v.unknown:
            kind = 2
        elif special and kind == 3:
            kind = 4
        proto.pieces.add(piece=t.replace(" ", "▁") if kind == 4 else t, score=v.scores[i], type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = BYTE in v.types
    proto.trainer_spec.vocab_size = len(v.tokens)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = v.add_space_prefix
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(proto.SerializeToString())
    if v.add_space_prefix:  # sentencepiece adds it at the start of a text only
        return in_pieces(v, special, processor.encode)
    return processor.encode


def oracles(v):
    if v.model == "tokenizer.json":
        return {"tokenizers": hf_json}
    if v.model == "gpt2":
        return {"tokenizers": hf_byte_level}
    if v.model == "llama":
        return {"sentencepiece": sentencepiece_scores, "tokenizers, derived merges": hf_scores}
    sys.exit(f"{v.path}: tokenizer.ggml.model {v.model!r} has no oracle here")


# ---- comparison -----------------------------------------------------------------------------------------------

def parse_ids(text):
    text = text.strip()
    return json.loads(text) if text.startswith("[") else [int(x) for x in text.replace(",", " ").split()]


def ask(program, v, text, special, lines):
    command = [*program, "tokenize", "-m", v.path, "--ids"] + ["--no-special"] * (not special) + ["--lines"] * lines
    done = subprocess.run(command, input=text.encode(), capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
    out = done.stdout.decode()
    return [parse_ids(line) for line in out.split("\n")[:-1]] if lines else parse_ids(out)


def without_bos(v, got, want):
    return got[1:] if v.add_bos and got[:1] == [v.bos] and want[:1] != [v.bos] else got


def first_difference(v, got, want):
    k = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    near = lambda ids: " ".join(f"{i}:{v.tokens[i]!r}" for i in ids[max(0, k - 3):k + 5])
    return f"at id {k} of {len(want)}\n      got  {near(got)}\n      want {near(want)}"


def compare(v, program, n_bytes, seed, sample):
    added = v.of_type(CONTROL, USER)
    added = added if len(added) < 50 else random.Random(seed).sample(added, 40) + v.of_type(USER)
    text = make_corpus(n_bytes, seed, added or ["<s>"])
    lines = text.split("\n")
    print(f"{os.path.basename(v.path)}: {v.model} {v.pre}, {len(v.tokens)} tokens; corpus {len(text.encode())} bytes, "
          f"{len(lines)} lines, seed {seed}")
    if sample is not None:
        lines = random.Random(seed).sample(lines, min(sample, len(lines)))
    bad = 0
    for special in (False, True):
        whole = ask(program, v, text, special, False)
        if sample is None:
            each = ask(program, v, text, special, True)
        else:
            each = [ask(program, v, line, special, False) for line in lines]
        if len(each) != len(lines):
            sys.exit(f"--lines gave {len(each)} lines of ids for {len(lines)} lines of text")
        for name, make in oracles(v).items():
            encode = make(v, special)
            want = encode(text)
            got = without_bos(v, whole, want)
            mode = "control tokens on " if special else "control tokens off"
            print(f"  {mode}  whole  {name}: " + (f"{len(want)} ids equal" if got == want else
                                                  "DIFFERS " + first_difference(v, got, want)))
            bad += got != want and make is not hf_scores
            wrong = []
            for line, ids in zip(lines, each):
                want = encode(line)
                if without_bos(v, ids, want) != want:
                    wrong.append((line, without_bos(v, ids, want), want))
            print(f"  {mode}  lines  {name}: {len(lines) - len(wrong)} of {len(lines)} lines equal")
            for line, ids, want in wrong[:3]:
                print(f"    {line[:100]!r} " + first_difference(v, ids, want))
            bad += bool(wrong) and make is not hf_scores
    return bad


# ---- fixtures -------------------------------------------------------------------------------------------------

def fixture_corpus():
    return make_corpus(60000, 7, ["<|end|>", "<b>"])


CONTROLS = ["<|start|>", "<|end|>", "<|end|>x"]
USERS = ["<b>", "</b>", "\n\n", "\n\n\n"]


def train_byte_level(pre):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    set_pre_tokenizer(tokenizer, pre)
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=CONTROLS + USERS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([unicodedata.normalize("NFC", fixture_corpus())], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1])]
    types = [CONTROL] * len(CONTROLS) + [USER] * len(USERS) + [NORMAL] * (len(tokens) - len(CONTROLS) - len(USERS))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return dict(model="gpt2", pre=pre, tokens=tokens, types=types, merges=merges, bos=0, eos=1)


def train_scores(prefix):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    latin = [s for s in SENTENCES if max(s) < "\u0400"] + CODE
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(latin * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merged = ["".join(m if isinstance(m, list) else m.split(" ")) for m in model["merges"]]
    merged = list(dict.fromkeys(merged + ["==", "====", "▁▁", ">▁<"]))  # the last holds a space between two others
    single = [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1]) if len(t) == 1 and t != "\n"]
    controls = ["<unk>", "<s>", "</s>", "<|end|>", "<|end|>x"]
    pieces = [(t, -1000.0, UNKNOWN if t == "<unk>" else CONTROL) for t in controls]
    pieces += [(t, -1000.0, USER) for t in USERS + ["\n"] + ["    "] * (not prefix)]
    pieces += [("<0x%02X>" % b, 0.0, BYTE) for b in range(256)]
    pieces += [(t, -float(i // 2), NORMAL) for i, t in enumerate(merged)]  # neighbours share a score: ties
    pieces += [(t, -10000.0 - i, NORMAL) for i, t in enumerate(single)]
    return dict(model="llama", pre="default", tokens=[p[0] for p in pieces], scores=[p[1] for p in pieces],
                types=[p[2] for p in pieces], bos=1, eos=2, unknown=0, prefix=prefix)


def write_gguf(path, v):
    import gguf
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(v["model"])
    w.add_tokenizer_pre(v["pre"])
    w.add_token_list(v["tokens"])
    w.add_token_types(v["types"])
    if "merges" in v:
        w.add_token_merges(v["merges"])
    if "scores" in v:
        w.add_token_scores(v["scores"])
    w.add_bos_token_id(v["bos"])
    w.add_eos_token_id(v["eos"])
    if "unknown" in v:
        w.add_unk_token_id(v["unknown"])
    w.add_add_bos_token(True)
    w.add_add_space_prefix(v.get("prefix", False))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def escape(text):
    out = ""
    for c in text:
        plain = c == " " or (unicodedata.category(c)[0] not in "CZM" and c != "\\")
        out += c if plain else "\\\\" if c == "\\" else "".join(f"\\x{b:02x}" for b in c.encode())
    return out


def fixture_texts():
    r = random.Random(11)
    chars = assigned()
    marks = [chr(c) for c in chars if unicodedata.combining(chr(c))]
    texts = ["", "a", " ", "  ", "\n", "\n\n", "\n\n\n\n\n", " \n ", "a" * 70, "=" * 33, "= ==  === ", "x" * 24,
             "ab" * 13, "don't DON'T 'ſ we'LL", "1234567 89", "a1b22c333", "  12", "a\u180eb", "> <", "a> < b",
             "<|start|>hi<|end|>", "<|end|>x", "<|end|", "<b>bold</b>", "\x00\x01", "\u00e9 e\u0301", "\uac01 \u1100\u1161\u11a8 \uac00\u11a8"]
    texts += SENTENCES + CODE
    texts += [corpus_line(r, chars, marks, CONTROLS + USERS) for _ in range(40)]
    return list(dict.fromkeys(t for t in texts if len(t) < 200))


def write_fixtures(folder):
    todo = {f"bpe-{pre}": train_byte_level(pre) for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2")}
    todo |= {"spm": train_scores(False), "spm-prefix": train_scores(True)}
    for name, fixture in todo.items():
        path = os.path.join(folder, name + ".gguf")
        write_gguf(path, fixture)
        v = Vocabulary(path)
        encoders = [next(iter(oracles(v).values()))(v, special) for special in (False, True)]
        with open(os.path.join(folder, name + ".txt"), "w", encoding="utf-8") as f:
            f.write("# control tokens (0 off, 1 on; one line when equal) | ids | text; "
                    "made by tools/compare_tokenizers.py\n")
            for text in fixture_texts():
                ids = [" ".join(map(str, encode(text))) for encode in encoders]
                if ids[0] == ids[1]:
                    f.write(f"01|{ids[0]}|{escape(text)}\n")
                else:
                    f.write(f"0|{ids[0]}|{escape(text)}\n1|{ids[1]}|{escape(text)}\n")
        print(f"{path}: {len(v.tokens)} tokens, {os.path.getsize(path)} bytes")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("models", nargs="*", metavar="MODEL.gguf")
    p.add_argument("--program", default="tern", help="program to test, with any leading arguments (default: tern)")
    p.add_argument("--bytes", type=int, default=1 << 20, help="size of the corpus (default: 1 MiB)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--sample", type=int, default=50, help="lines to compare one by one (default: 50)")
    p.add_argument("--batch", action="store_true", help="compare all lines, through the program's --lines")
    p.add_argument("--write-corpus", metavar="FILE", help="write the corpus and stop")
    p.add_argument("--write-fixtures", metavar="FOLDER", help="write the small vocabularies of the unit tests and stop")
    args = p.parse_args()
    if args.write_corpus:
        with open(args.write_corpus, "w", encoding="utf-8", newline="") as f:
            f.write(make_corpus(args.bytes, args.seed, CONTROLS + USERS))
        return 0
    if args.write_fixtures:
        write_fixtures(args.write_fixtures)
        return 0
    if not args.models:
        p.error("no model given")
    load = lambda m: JsonVocabulary(m) if m.endswith(".json") else Vocabulary(m)
    return 1 if sum(compare(load(m), args.program.split(), args.bytes, args.seed,
                            None if args.batch else args.sample) for m in args.models) else 0


if __name__ == "__main__":
    sys.exit(main())
