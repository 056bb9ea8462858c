#include "text/tok/tok.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int tern_tok_strings_init(struct tern_tok_strings *s, size_t n, size_t n_bytes, tern_error *err)
{
    int rc = 0;
    size_t total;
    if (!tern_add(n, n_bytes, &total) || total > UINT32_MAX)
        TERN_FAIL(err, TERN_ELIMIT, "a vocabulary of %zu tokens and %zu bytes of text is too large", n, n_bytes);
    TERN_TRY(tern_alloc(&s->data, total, 1, err));
    TERN_TRY(tern_alloc(&s->off, n + 1, sizeof *s->off, err));
out:
    if (rc < 0)
        tern_tok_strings_clear(s);
    return rc;
}

void tern_tok_strings_set(struct tern_tok_strings *s, int32_t id, const char *p, size_t n)
{
    uint32_t at = s->off[id];
    if (n)
        memcpy(s->data + at, p, n);
    s->data[at + n] = 0;
    s->off[id + 1] = (uint32_t)(at + n + 1);
}

void tern_tok_strings_clear(struct tern_tok_strings *s)
{
    tern_free(s->data);
    tern_free(s->off);
    *s = (struct tern_tok_strings){0};
}

/* At least two slots per entry, so that a miss ends after one or two steps. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n * 2)
        size *= 2;
    return size;
}

int tern_tok_map_init(struct tern_tok_map *m, size_t n_max, tern_error *err)
{
    size_t size = table_size(n_max);
    m->mask = size - 1;
    return tern_alloc(&m->slot, size, sizeof *m->slot, err);
}

/* The slot that holds the string, or the free slot where it belongs. */
static uint64_t *map_slot(const struct tern_tok_map *m, const struct tern_tok_strings *s, const char *p, size_t n,
                          uint32_t *tag)
{
    uint64_t hash = XXH3_64bits(p, n);
    *tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & m->mask;; i = (i + 1) & m->mask) {
        uint64_t slot = m->slot[i];
        if (slot == 0)
            return &m->slot[i];
        if (slot >> 32 != *tag)
            continue;
        size_t len;
        const char *have = tern_tok_string(s, (int32_t)(uint32_t)slot - 1, &len);
        if (len == n && memcmp(have, p, n) == 0)
            return &m->slot[i];
    }
}

void tern_tok_map_add(struct tern_tok_map *m, const struct tern_tok_strings *s, int32_t id)
{
    size_t n;
    uint32_t tag;
    const char *p = tern_tok_string(s, id, &n);
    uint64_t *slot = map_slot(m, s, p, n, &tag);
    if (*slot == 0)
        *slot = (uint64_t)tag << 32 | (uint32_t)(id + 1);
}

int32_t tern_tok_map_get(const struct tern_tok_map *m, const struct tern_tok_strings *s, const char *p, size_t n)
{
    uint32_t tag;
    if (!m->slot)
        return -1;
    uint64_t *slot = map_slot(m, s, p, n, &tag);
    return (int32_t)(uint32_t)*slot - 1;
}

void tern_tok_map_clear(struct tern_tok_map *m)
{
    tern_free(m->slot);
    *m = (struct tern_tok_map){0};
}

int tern_tok_rules_init(struct tern_tokenizer *t, size_t n_max, tern_error *err)
{
    size_t size = table_size(n_max);
    int rc = tern_alloc(&t->rules, size, sizeof *t->rules, err);
    if (rc < 0)
        return rc;
    t->rule_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        t->rules[i].left = -1;
    return 0;
}

void tern_tok_rules_add(struct tern_tokenizer *t, const struct tern_tok_merge_rule *rule)
{
    size_t i = tern_tok_rule_slot(t, rule->left, rule->right);
    while (t->rules[i].left >= 0) {
        if (t->rules[i].left == rule->left && t->rules[i].right == rule->right)
            return;
        i = (i + 1) & t->rule_mask;
    }
    t->rules[i] = *rule;
}
