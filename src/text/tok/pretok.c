/* The pre-tokenizers that GGUF files name: which regexes cut text into the words inside which byte-level BPE merges.
 * The patterns are facts about how the models were trained. */
#include "text/tok/tok.h"

#include <string.h>

#define ENGLISH_ENDINGS        "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_CASE_ENDINGS       "(?i:" ENGLISH_ENDINGS ")"
#define ANY_CASE_ENDINGS_MAYBE ANY_CASE_ENDINGS "?"
#define LINES_AND_SPACES       "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define GPT2 ENGLISH_ENDINGS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* "Each digit alone, then GPT-2" as one pattern, in which a digit ends the text for a lookahead. */
#define DIGIT_THEN_GPT2 "\\p{N}|" ENGLISH_ENDINGS "| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+"

#define LLAMA3(digits) \
    ANY_CASE_ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" LINES_AND_SPACES

/* Words as a run of capitals and a run of small letters, of which one may be missing. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(endings, digits)                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" endings "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" endings \
    "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" LINES_AND_SPACES

#define HAN_AND_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK3                                           \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+" \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define BLOOM        " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{0964}\\x{06D4}\\x{060C})]+"

/* Letters with two cases, as of Unicode 12. */
#define DEEPSEEK_CASED                                                                                     \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"        \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}" \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"        \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"      \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"      \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-"       \
    "\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"       \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"      \
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"         \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}"       \
    "\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"        \
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}"      \
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"      \
    "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-"      \
    "\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

const char tern_pretok_gpt2[] = GPT2;

static const struct tern_pretok_info registry[] = {
#define PRETOK(names_, flags_, ...) {.names = (names_), .flags = (flags_), .patterns = {__VA_ARGS__}},
#include "text/tok/pretok.def"
#undef PRETOK
};

const struct tern_pretok_info *tern_pretok_find(const char *name, size_t n)
{
    if (n == 0 || memchr(name, ' ', n))
        return NULL;
    for (size_t i = 0; i < sizeof registry / sizeof registry[0]; i++)
        for (const char *p = registry[i].names; *p;) {
            size_t len = strcspn(p, " ");
            if (len == n && memcmp(p, name, n) == 0)
                return &registry[i];
            p += len + (p[len] == ' ');
        }
    return NULL;
}

const struct tern_pretok_info *tern_pretok_at(size_t i)
{
    return i < sizeof registry / sizeof registry[0] ? &registry[i] : NULL;
}

int tern_pretok_steps(const struct tern_pretok_info *info, struct tern_tok_steps *s, tern_error *err)
{
    int rc = 0;
    for (const char *const *p = info->patterns; *p; p++)
        TERN_TRY(tern_tok_steps_split(s, *p, TERN_TOK_ISOLATED, false, err));
out:
    return rc;
}
