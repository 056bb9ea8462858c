/* The steps around the model in a tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor.  What cannot be
 * done exactly is refused by name. */
#include <string.h>

#include "text/tok/json.h"

enum { MAX_DEPTH = 8 }; /* of Sequences within Sequences */

#define MARK "\xE2\x96\x81"

const json_t *tern_tok_json_get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

bool tern_tok_json_flag(const json_t *object, const char *key, bool def)
{
    const json_t *v = tern_tok_json_get(object, key);
    return json_is_boolean(v) ? json_is_true(v) : def;
}

const char *tern_tok_json_type(const json_t *object)
{
    const char *s = json_string_value(json_object_get(object, "type"));
    return s ? s : "";
}

static int refuse(const struct tern_tok_json *j, const char *what, const json_t *object, const char *why,
                  tern_error *err)
{
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the %s '%.64s' %s", j->name, what, tern_tok_json_type(object),
                        why);
}

typedef int (*reader)(struct tern_tok_json *j, const json_t *object, int depth, tern_error *err);

/* Reads each member of the list under `key`. */
static int read_list(struct tern_tok_json *j, const char *what, const json_t *object, const char *key, reader read,
                     int depth, tern_error *err)
{
    int rc = 0;
    const json_t *list = tern_tok_json_get(object, key);
    if (!json_is_array(list) || depth == MAX_DEPTH)
        return refuse(j, what, object, list ? "is nested too deeply or has no list" : "has no list", err);
    for (size_t i = 0; i < json_array_size(list); i++)
        TERN_TRY(read(j, json_array_get(list, i), depth + 1, err));
out:
    return rc;
}

/* {"String": "x"} or {"Regex": "x+"}. */
static int read_pattern(const struct tern_tok_json *j, const char *what, const json_t *object,
                        struct tern_tok_regex **re, tern_error *err)
{
    tern_error why = {0};
    const json_t *pattern = tern_tok_json_get(object, "pattern");
    const json_t *text = tern_tok_json_get(pattern, "String"), *regex = tern_tok_json_get(pattern, "Regex");
    const json_t *v = text ? text : regex;
    if (!json_is_string(v) || json_string_length(v) == 0)
        return refuse(j, what, object, "has no pattern", err);
    int rc =
        (text ? tern_tok_regex_literal : tern_tok_regex_new)(re, json_string_value(v), json_string_length(v), &why);
    return rc < 0 ? tern_err_set(err, rc, "%s: the %s '%.64s': %s", j->name, what, tern_tok_json_type(object), why.msg)
                  : 0;
}

static int add_text(const struct tern_tok_json *j, const char *what, const json_t *object, const char *key,
                    struct tern_buf *out, tern_error *err)
{
    const json_t *v = tern_tok_json_get(object, key);
    if (!json_is_string(v))
        return refuse(j, what, object, "lacks a text", err);
    return tern_buf_add(out, json_string_value(v), json_string_length(v), err);
}

static int read_charsmap(const struct tern_tok_json *j, const char *what, const json_t *object,
                         struct tern_tok_charsmap **map, tern_error *err)
{
    tern_error why = {0};
    const json_t *v = tern_tok_json_get(object, "precompiled_charsmap");
    if (!json_is_string(v))
        return refuse(j, what, object, "has no table", err);
    int rc = tern_tok_charsmap_new(map, json_string_value(v), json_string_length(v), &why);
    return rc < 0 ? tern_err_set(err, rc, "%s: the %s 'Precompiled': %s", j->name, what, why.msg) : 0;
}

/* ---- normalizer --------------------------------------------------------------------------------------------- */

static int read_normalizer(struct tern_tok_json *j, const json_t *object, int depth, tern_error *err)
{
    static const struct {
        const char *name;
        enum tern_tok_step_kind kind;
    } known[] = {
        {"NFC", TERN_TOK_NFC},
        {"NFD", TERN_TOK_NFD},
        {"NFKC", TERN_TOK_NFKC},
        {"NFKD", TERN_TOK_NFKD},
        {"Lowercase", TERN_TOK_LOWERCASE},
        {"StripAccents", TERN_TOK_STRIP_ACCENTS},
        {"Strip", TERN_TOK_STRIP},
        {"Prepend", TERN_TOK_PREPEND},
        {"Replace", TERN_TOK_REPLACE},
        {"Precompiled", TERN_TOK_CHARSMAP},
    };
    static const char what[] = "normalizer";
    int rc = 0;
    struct tern_tok_step *step = NULL;
    const char *type = tern_tok_json_type(object);
    if (strcmp(type, "Sequence") == 0)
        return read_list(j, what, object, "normalizers", read_normalizer, depth, err);
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !step; i++)
        if (strcmp(type, known[i].name) == 0)
            TERN_TRY(tern_tok_steps_add(&j->t->norm, known[i].kind, &step, err));
    if (!step)
        return refuse(j, what, object, "is not supported", err);
    step->left = tern_tok_json_flag(object, "strip_left", true);
    step->right = tern_tok_json_flag(object, "strip_right", true);
    if (step->kind == TERN_TOK_PREPEND)
        TERN_TRY(add_text(j, what, object, "prepend", &step->text, err));
    if (step->kind == TERN_TOK_CHARSMAP)
        TERN_TRY(read_charsmap(j, what, object, &step->map, err));
    if (step->kind == TERN_TOK_REPLACE) {
        TERN_TRY(read_pattern(j, what, object, &step->re, err));
        TERN_TRY(add_text(j, what, object, "content", &step->text, err));
    }
out:
    return rc;
}

int tern_tok_json_normalizer(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = object ? read_normalizer(j, object, 0, err) : 0;
    j->t->nfc = j->t->norm.n == 1 && j->t->norm.step[0].kind == TERN_TOK_NFC;
    return rc;
}

/* ---- pre-tokenizer ------------------------------------------------------------------------------------------ */

static const char pre[] = "pre-tokenizer";

static int read_behavior(const struct tern_tok_json *j, const json_t *object, enum tern_tok_behavior *out,
                         tern_error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(tern_tok_json_get(object, "behavior"));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (name && strcmp(name, names[i]) == 0) {
            *out = (enum tern_tok_behavior)i;
            return 0;
        }
    return refuse(j, pre, object, "has no behavior that is known", err);
}

static int read_split(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = 0;
    struct tern_tok_step *step = NULL;
    TERN_TRY(tern_tok_steps_add(&j->t->pre, TERN_TOK_SPLIT, &step, err));
    TERN_TRY(read_pattern(j, pre, object, &step->re, err));
    TERN_TRY(read_behavior(j, object, &step->behavior, err));
    step->invert = tern_tok_json_flag(object, "invert", false);
out:
    return rc;
}

static int read_byte_level(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = 0;
    struct tern_tok_step *step = NULL;
    if (tern_tok_json_flag(object, "add_prefix_space", true))
        TERN_TRY(tern_tok_steps_add(&j->t->pre, TERN_TOK_PREFIX_SPACE, &step, err));
    if (tern_tok_json_flag(object, "use_regex", true))
        TERN_TRY(tern_tok_steps_split(&j->t->pre, tern_pretok_gpt2, TERN_TOK_ISOLATED, false, err));
    j->byte_level = true;
out:
    return rc;
}

/* "always", "first", "never"; older files have a flag instead. */
static int read_prefix(const struct tern_tok_json *j, const json_t *object, enum tern_tok_prefix *out, tern_error *err)
{
    static const char *const names[] = {"never", "first", "always"};
    const json_t *v = tern_tok_json_get(object, "prepend_scheme");
    *out = tern_tok_json_flag(object, "add_prefix_space", true) ? TERN_TOK_PREFIX_ALWAYS : TERN_TOK_PREFIX_NEVER;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), names[i]) == 0) {
            *out = (enum tern_tok_prefix)i;
            return 0;
        }
    return v ? refuse(j, pre, object, "has a prepend_scheme that is not known", err) : 0;
}

static int read_metaspace(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = 0;
    struct tern_tok_step *step = NULL;
    TERN_TRY(tern_tok_steps_add(&j->t->pre, TERN_TOK_MARK, &step, err));
    TERN_TRY(read_prefix(j, object, &step->prefix, err));
    TERN_TRY(add_text(j, pre, object, "replacement", &step->text, err));
    if (step->text.len == 0)
        return refuse(j, pre, object, "lacks a replacement", err);
    if (tern_tok_json_flag(object, "split", true)) {
        struct tern_tok_step *split = NULL;
        TERN_TRY(tern_tok_steps_add(&j->t->pre, TERN_TOK_SPLIT, &split, err));
        TERN_TRY(tern_tok_regex_literal(&split->re, step->text.p, step->text.len, err));
        split->behavior = TERN_TOK_MERGED_WITH_NEXT;
    }
out:
    return rc;
}

static int read_delimiter(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = 0;
    struct tern_tok_step *step = NULL;
    const json_t *v = tern_tok_json_get(object, "delimiter");
    if (!json_is_string(v) || json_string_length(v) == 0)
        return refuse(j, pre, object, "has no delimiter", err);
    TERN_TRY(tern_tok_steps_add(&j->t->pre, TERN_TOK_SPLIT, &step, err));
    TERN_TRY(tern_tok_regex_literal(&step->re, json_string_value(v), json_string_length(v), err));
out:
    return rc;
}

/* The \w of "Whitespace" and of single words, which is Unicode's and not Oniguruma's: Alphabetic, M, Nd, Pc and the two
 * joiners (as tern_tok_is_word has it). */
#define UNICODE_WORD                                                                              \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}" \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"

static int read_pre_tokenizer(struct tern_tok_json *j, const json_t *object, int depth, tern_error *err)
{
    int rc = 0;
    struct tern_tok_steps *s = &j->t->pre;
    struct tern_tok_step *step = NULL;
    enum tern_tok_behavior behavior = TERN_TOK_ISOLATED;
    const char *type = tern_tok_json_type(object);
    if (strcmp(type, "Sequence") == 0)
        return read_list(j, pre, object, "pretokenizers", read_pre_tokenizer, depth, err);
    if (j->byte_level && !j->t->mapped) { /* from here on steps see the byte alphabet */
        TERN_TRY(tern_tok_steps_add(s, TERN_TOK_ALPHABET, &step, err));
        j->t->mapped = true;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return j->byte_level ? refuse(j, pre, object, "is there twice", err) : read_byte_level(j, object, err);
    if (strcmp(type, "Split") == 0)
        return read_split(j, object, err);
    if (strcmp(type, "Metaspace") == 0)
        return j->byte_level ? refuse(j, pre, object, "comes after ByteLevel", err) : read_metaspace(j, object, err);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return read_delimiter(j, object, err);
    if (strcmp(type, "Digits") == 0)
        return tern_tok_steps_split(s, "\\p{N}",
                                    tern_tok_json_flag(object, "individual_digits", false) ? TERN_TOK_ISOLATED
                                                                                           : TERN_TOK_CONTIGUOUS,
                                    false, err);
    if (strcmp(type, "Whitespace") == 0)
        return tern_tok_steps_split(s, "[" UNICODE_WORD "]+|[^" UNICODE_WORD "\\s]+", TERN_TOK_REMOVED, true, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return tern_tok_steps_split(s, "\\s", TERN_TOK_REMOVED, false, err);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        TERN_TRY(tern_tok_steps_split(s, "\\s", TERN_TOK_REMOVED, false, err));
        return tern_tok_steps_split(s, PUNCTUATION, TERN_TOK_ISOLATED, false, err);
    }
    if (strcmp(type, "Punctuation") != 0)
        return refuse(j, pre, object, "is not supported", err);
    if (tern_tok_json_get(object, "behavior"))
        TERN_TRY(read_behavior(j, object, &behavior, err));
    rc = tern_tok_steps_split(s, PUNCTUATION, behavior, false, err);
out:
    return rc;
}

int tern_tok_json_pre_tokenizer(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    return object ? read_pre_tokenizer(j, object, 0, err) : 0;
}

/* ---- decoder ------------------------------------------------------------------------------------------------ */

static const char decoder[] = "decoder";

/* `to` NULL: not a text. */
static int add_replacement(struct tern_tok_json *j, const json_t *object, const json_t *from, const char *to,
                           size_t n_to, tern_error *err)
{
    struct tern_tok_decoder *d = &j->decoder;
    if (!json_is_string(from) || !to || json_string_length(from) == 0)
        return refuse(j, decoder, object, "replaces something else than a text by a text", err);
    if (d->n_replace == TERN_TOK_MAX_REPLACEMENTS || n_to > json_string_length(from))
        return refuse(j, decoder, object, "replaces too much or makes tokens longer", err);
    d->replace[d->n_replace].from = json_string_value(from);
    d->replace[d->n_replace].n_from = json_string_length(from);
    d->replace[d->n_replace].to = to;
    d->replace[d->n_replace++].n_to = n_to;
    return 0;
}

static int read_strip(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    const char *content = json_string_value(tern_tok_json_get(object, "content"));
    json_int_t start = json_integer_value(tern_tok_json_get(object, "start"));
    json_int_t stop = json_integer_value(tern_tok_json_get(object, "stop"));
    if (!j->decoder.fused || !content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
        return refuse(j, decoder, object, "strips something else than one space in front of the text", err);
    j->t->drop_space = start == 1;
    return 0;
}

static int read_decoder(struct tern_tok_json *j, const json_t *object, int depth, tern_error *err)
{
    int rc = 0;
    const char *type = tern_tok_json_type(object);
    if (strcmp(type, "Sequence") == 0)
        return read_list(j, decoder, object, "decoders", read_decoder, depth, err);
    if (strcmp(type, "Replace") == 0) {
        const json_t *from = tern_tok_json_get(tern_tok_json_get(object, "pattern"), "String");
        const json_t *to = tern_tok_json_get(object, "content");
        return add_replacement(j, object, from, json_string_value(to), json_string_length(to), err);
    }
    if (strcmp(type, "Strip") == 0)
        return read_strip(j, object, err);
    if (strcmp(type, "ByteLevel") == 0) {
        j->decoder.alphabet = true;
    } else if (strcmp(type, "ByteFallback") == 0) {
        j->decoder.byte_fallback = true;
    } else if (strcmp(type, "Fuse") == 0) {
        j->decoder.fused = true;
    } else if (strcmp(type, "Metaspace") == 0) {
        enum tern_tok_prefix prefix;
        TERN_TRY(read_prefix(j, object, &prefix, err));
        j->t->drop_space = prefix != TERN_TOK_PREFIX_NEVER;
        rc = add_replacement(j, object, tern_tok_json_get(object, "replacement"), " ", 1, err);
    } else {
        return refuse(j, decoder, object, "is not supported", err);
    }
out:
    return rc;
}

int tern_tok_json_decoder(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    if (!object)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "%s: has no decoder; putting spaces between tokens is not supported", j->name);
    return read_decoder(j, object, 0, err);
}

/* ---- post-processor ----------------------------------------------------------------------------------------- */

static const char post[] = "post-processor";

static int add_around(struct tern_tok_json *j, const json_t *object, bool behind, const json_t *id, tern_error *err)
{
    struct tern_tokenizer *t = j->t;
    int *n = behind ? &t->n_back : &t->n_front;
    json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
    if (v < 0 || v >= t->n_vocab || *n == TERN_TOK_MAX_AROUND)
        return refuse(j, post, object, "adds too many tokens, or one that is not there", err);
    (behind ? t->back : t->front)[(*n)++] = (int32_t)v;
    return 0;
}

static int read_template(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    int rc = 0;
    bool behind = false;
    const json_t *single = tern_tok_json_get(object, "single"), *specials = tern_tok_json_get(object, "special_tokens");
    if (!json_is_array(single))
        return refuse(j, post, object, "has no list 'single'", err);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = tern_tok_json_get(json_array_get(single, i), "SpecialToken");
        const char *name = json_string_value(tern_tok_json_get(special, "id"));
        const json_t *ids = name ? tern_tok_json_get(tern_tok_json_get(specials, name), "ids") : NULL;
        if (!special) {
            if (behind || !tern_tok_json_get(json_array_get(single, i), "Sequence"))
                return refuse(j, post, object, "is not made of special tokens and one text", err);
            behind = true;
        }
        if (special && !json_is_array(ids))
            return refuse(j, post, object, "names a token that it does not describe", err);
        for (size_t k = 0; k < json_array_size(ids); k++)
            TERN_TRY(add_around(j, object, behind, json_array_get(ids, k), err));
    }
    if (!behind)
        return refuse(j, post, object, "is not made of special tokens and one text", err);
out:
    return rc;
}

static int read_post_processor(struct tern_tok_json *j, const json_t *object, int depth, tern_error *err)
{
    int rc = 0;
    const char *type = tern_tok_json_type(object);
    if (strcmp(type, "Sequence") == 0)
        return read_list(j, post, object, "processors", read_post_processor, depth, err);
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(j, object, err);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        TERN_TRY(add_around(j, object, false, json_array_get(tern_tok_json_get(object, "cls"), 1), err));
        return add_around(j, object, true, json_array_get(tern_tok_json_get(object, "sep"), 1), err);
    }
    if (strcmp(type, "ByteLevel") != 0) /* which changes offsets alone */
        return refuse(j, post, object, "is not supported", err);
out:
    return rc;
}

int tern_tok_json_post_processor(struct tern_tok_json *j, const json_t *object, tern_error *err)
{
    return object ? read_post_processor(j, object, 0, err) : 0;
}
