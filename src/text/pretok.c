/* The pre-tokenizer: which regex cuts text into the words inside which byte-level BPE merges.
 *
 * A file names its pattern (tokenizer.ggml.pre); the patterns themselves are facts about how the models were trained.
 * They are written here for PCRE2 with two changes that do not alter what they match in the training library:
 *   - \s is spelled out, because PCRE2 counts U+180E as a space and Oniguruma does not
 *   - "each digit alone first, then the GPT-2 pattern" is one pattern, in which a digit ends the text for a lookahead
 *
 * No pattern can take more than linear time on a word, but the limits are set anyway. */
#include "text/tok_impl.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SPACES      "\\t-\\r\\x{85}\\p{Z}"
#define S           "[" SPACES "]"
#define SYMBOL      "[^" SPACES "\\p{L}\\p{N}]"
#define LAST_SPACES S "+(?![^" SPACES "])|" S "+"

#define ENGLISH_ENDINGS  "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_CASE_ENDINGS "(?i:" ENGLISH_ENDINGS ")"
#define LLAMA3_TAIL      " ?" SYMBOL "+[\\r\\n]*|" S "*[\\r\\n]+|" LAST_SPACES

static const char pattern_gpt2[] = ENGLISH_ENDINGS "| ?\\p{L}+| ?\\p{N}+| ?" SYMBOL "+|" LAST_SPACES;
static const char pattern_smollm[] =
    "\\p{N}|" ENGLISH_ENDINGS "| ?\\p{L}+| ?" SYMBOL "+|" S "+(?![^" SPACES "\\p{N}])|" S "+";
static const char pattern_llama3[] = ANY_CASE_ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" LLAMA3_TAIL;
static const char pattern_qwen2[] = ANY_CASE_ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" LLAMA3_TAIL;

static const struct tern_pretok_info registry[] = {
    {"smollm", pattern_smollm, .add_bos = false},
    {"gpt-2", pattern_gpt2, .add_bos = false},
    {"llama-bpe", pattern_llama3, .ignore_merges = true, .add_bos = true},
    {"llama3", pattern_llama3, .ignore_merges = true, .add_bos = true},
    {"llama-v3", pattern_llama3, .ignore_merges = true, .add_bos = true},
    {"dbrx", pattern_llama3, .add_bos = false},
    {"smaug-bpe", pattern_llama3, .add_bos = false},
    {"qwen2", pattern_qwen2, .nfc = true},
    {"deepseek-r1-qwen", pattern_qwen2, .nfc = true},
};

struct tern_pretok {
    pcre2_code *code;
    bool jit;
};

const struct tern_pretok_info *tern_pretok_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof registry / sizeof registry[0]; i++)
        if (strlen(registry[i].name) == n && memcmp(registry[i].name, name, n) == 0)
            return &registry[i];
    return NULL;
}

int tern_pretok_new(struct tern_pretok **out, const struct tern_pretok_info *info, tern_error *err)
{
    int rc = 0;
    int code;
    size_t offset;
    struct tern_pretok *p = NULL;
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    p->code =
        pcre2_compile((PCRE2_SPTR)info->pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    if (!p->code)
        TERN_FAIL(err, TERN_ENOMEM, "cannot compile the pattern of pre-tokenizer %s (PCRE2 error %d at %zu)",
                  info->name, code, offset);
    /* Compiling to machine code needs writable executable memory, which a hardened service may forbid; the
     * interpreter gives the same matches. */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
out:
    if (rc < 0) {
        tern_pretok_free(p);
        p = NULL;
    }
    *out = p;
    return rc;
}

void tern_pretok_free(struct tern_pretok *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    tern_free(p);
}

int tern_pretok_begin(const struct tern_pretok *p, struct tern_pretok_run *run, tern_error *err)
{
    (void)p;
    run->match = pcre2_match_data_create(1, NULL);
    run->limits = pcre2_match_context_create(NULL);
    if (!run->match || !run->limits) {
        tern_pretok_end(run);
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the pre-tokenizer's match data");
    }
    return 0;
}

void tern_pretok_end(struct tern_pretok_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->limits);
    *run = (struct tern_pretok_run){0};
}

int tern_pretok_next(const struct tern_pretok *p, struct tern_pretok_run *run, const char *text, size_t n, size_t from,
                     size_t *end, tern_error *err)
{
    int got = PCRE2_ERROR_JIT_STACKLIMIT;
    /* A few steps per byte are enough for every pattern; without a limit tied to the text, one fixed number would
     * either refuse long runs of spaces or permit minutes. */
    size_t limit = 10000 + 16 * (n - from);
    (void)pcre2_set_match_limit(run->limits, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    if (p->jit)
        got = pcre2_jit_match(p->code, (PCRE2_SPTR)text, n, from, 0, run->match, run->limits);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT)
        got =
            pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->match, run->limits);
    if (got == PCRE2_ERROR_NOMATCH) {
        *end = n; /* no pattern here leaves a gap; if one did, the gap would be a word */
        return 0;
    }
    if (got < 0)
        return tern_err_set(err, TERN_ELIMIT, "the pre-tokenizer gave up at byte %zu of %zu (PCRE2 error %d)", from, n,
                            got);
    const size_t *range = pcre2_get_ovector_pointer(run->match);
    *end = range[0] > from ? range[0] : range[1];
    if (*end <= from) {
        uint32_t cp;
        *end = from + (size_t)tern_utf8_decode(text + from, n - from, &cp);
    }
    return 0;
}
