/* What the loaders of vocabularies share. */
#include "text/tok/encode.h"

#include <string.h>

bool tern_tok_is_added(uint8_t type)
{
    return type == TERN_TOK_USER || tern_tok_is_control_type(type);
}

void tern_tok_byte_alphabet(int16_t of[TERN_TOK_ALPHABET_END], char text[256][4])
{
    int next = 0x100;
    for (int i = 0; i < TERN_TOK_ALPHABET_END; i++)
        of[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        int cp = printable ? b : next++;
        of[cp] = (int16_t)b;
        memset(text[b], 0, sizeof text[b]);
        text[b][0] = (char)(cp < 0x80 ? cp : 0xC0 | cp >> 6);
        if (cp >= 0x80)
            text[b][1] = (char)(0x80 | (cp & 0x3F));
    }
}

size_t tern_tok_undo_alphabet(const int16_t of[TERN_TOK_ALPHABET_END], const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = tern_utf8_decode(p + i, n - i, &cp);
        if (len == 0 || cp >= TERN_TOK_ALPHABET_END || of[cp] < 0) {
            memcpy(out, p, n);
            return n;
        }
        out[k++] = (char)of[cp];
        i += (size_t)len;
    }
    return k;
}

size_t tern_tok_undo_marks(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; k++) {
        bool mark = n - i >= 3 && memcmp(p + i, "\xE2\x96\x81", 3) == 0;
        out[k] = mark ? ' ' : p[i];
        i += mark ? 3 : 1;
    }
    return k;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int tern_tok_byte_of_piece(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[3]) < 0 || hex_digit(p[4]) < 0)
        return -1;
    return hex_digit(p[3]) * 16 + hex_digit(p[4]);
}

void tern_tok_find_bytes(struct tern_tokenizer *t, enum tern_tok_type type)
{
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        const char *p = tern_tok_string(&t->bytes, i, &n);
        if (type == TERN_TOK_BYTE && t->type[i] == type) {
            /* By its spelling: what it is decoded to is for the file's decoder to say. */
            p = tern_tok_string(&t->piece, i, &n);
            const int byte = tern_tok_byte_of_piece(p, n);
            if (byte >= 0 && t->byte_id[byte] < 0)
                t->byte_id[byte] = i;
        } else if (t->type[i] == type && n == 1 && t->byte_id[(uint8_t)*p] < 0) {
            t->byte_id[(uint8_t)*p] = i;
        }
    }
    t->all_bytes = true;
    for (int b = 0; b < 256; b++)
        t->all_bytes = t->all_bytes && t->byte_id[b] >= 0;
}

int tern_tok_index_bytes(struct tern_tokenizer *t, tern_error *err)
{
    int rc = tern_tok_map_init(&t->by_bytes, (size_t)t->n_vocab, err);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        (void)tern_tok_string(&t->bytes, i, &n);
        if (t->type[i] != TERN_TOK_NORMAL || n == 0)
            continue;
        tern_tok_map_add(&t->by_bytes, &t->bytes, i);
        if (n > t->max_bytes)
            t->max_bytes = n;
    }
    return 0;
}

void tern_tok_unknown_bytes(struct tern_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0 && t->unknown >= 0 && t->type[t->unknown] == TERN_TOK_UNKNOWN)
            t->byte_id[b] = t->unknown;
}

void tern_tok_find_ends(struct tern_tokenizer *t)
{
    /* They count only where the vocabulary says "control", because "</s>" is an HTML tag to others. */
    static const char *const ends[] = {
        "<|im_end|>",       "<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>", "<turn|>",      "</s>",
        "<|tool_response>", "<|endoftext|>", "<|user|>",   "<|observation|>", "<end_of_turn>"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        int32_t id = tern_tokenizer_find(t, ends[i], strlen(ends[i]));
        if (id >= 0 && t->type[id] == TERN_TOK_CONTROL)
            t->eog[id] = true;
    }
}

bool tern_tok_is_piece(const struct tern_tokenizer *t, int32_t id)
{
    if (t->find && (t->find[id] & TERN_TOK_ALONE))
        return false;
    return t->type[id] == TERN_TOK_NORMAL || t->type[id] == TERN_TOK_USER;
}

bool tern_tok_add_merge(struct tern_tokenizer *t, const char *left, size_t n_left, const char *right, size_t n_right,
                        uint32_t rank)
{
    char joined[2 * TERN_TOK_MAX_PIECE];
    if (n_left > TERN_TOK_MAX_PIECE || n_right > TERN_TOK_MAX_PIECE)
        return false;
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right, n_right);
    struct tern_tok_merge_rule rule = {.left = tern_tokenizer_find(t, left, n_left),
                                       .right = tern_tokenizer_find(t, right, n_right),
                                       .rank = rank,
                                       .id = tern_tokenizer_find(t, joined, n_left + n_right)};
    if (rule.left < 0 || rule.right < 0 || rule.id < 0)
        return false;
    if (tern_tok_is_piece(t, rule.left) && tern_tok_is_piece(t, rule.right) && tern_tok_is_piece(t, rule.id))
        tern_tok_rules_add(t, &rule);
    return true;
}

bool tern_tok_add_merge_text(struct tern_tokenizer *t, const char *p, size_t n, uint32_t rank)
{
    /* A piece may itself begin with a space only where it is that space, so the gap is the first one behind it. */
    const char *gap = n > 2 ? memchr(p + 1, ' ', n - 2) : NULL;
    return gap && tern_tok_add_merge(t, p, (size_t)(gap - p), gap + 1, n - (size_t)(gap - p) - 1, rank);
}
