#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RECENT     4096
#define MAX_MAX        (1 << 24)
#define MAX_PLAN_BYTES ((size_t)1 << 16)

/* The names of all schemes, for messages. */
static void list_schemes(char *out, size_t n)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; tern_kv_codecs[i] && used < n; i++) {
        int w = snprintf(out + used, n - used, "%s%s", i ? " " : "", tern_kv_codecs[i]->name);
        used += w > 0 ? (size_t)w : 0;
    }
}

static int find_scheme(const struct tern_kv_codec **out, const char *p, size_t n, const char *text, tern_error *err)
{
    *out = tern_kv_codec_find(p, n);
    if (*out)
        return 0;
    if (n == 5 && !memcmp(p, "prod", 4) && p[4] >= '1' && p[4] <= '9')
        return tern_err_set(
            err, TERN_EINVAL,
            "--kv %s: TurboQuant_prod is not a scheme of the cache: its scores have about five times the "
            "variance of the l codes at equal bits (libternkv has it for comparison)",
            text);
    char names[160];
    list_schemes(names, sizeof names);
    return tern_err_set(err, TERN_EINVAL, "--kv %s: unknown scheme \"%.*s\" (known: %s)", text, (int)n, p, names);
}

/* "turbo8v4": the bits of keys and of values, 0 for 16 bits, as other engines name such pairs. */
static bool turbo_pair(struct tern_kv_spec *s, const char *p, size_t n)
{
    static const char *const of_digit[10] = {[0] = "f16", [2] = "turbo2", [3] = "turbo3", [4] = "turbo4", [8] = "q8"};
    if (n != 8 || memcmp(p, "turbo", 5) != 0 || p[6] != 'v')
        return false;
    const char *k = p[5] >= '0' && p[5] <= '9' ? of_digit[p[5] - '0'] : NULL;
    const char *v = p[7] >= '0' && p[7] <= '9' ? of_digit[p[7] - '0'] : NULL;
    if (!k || !v)
        return false;
    s->k = tern_kv_codec_find(k, strlen(k));
    s->v = tern_kv_codec_find(v, strlen(v));
    return true;
}

/* A decimal number that ends where *p then points, after eight digits at the latest; false when there is none. */
static bool number(const char **p, const char *end, int *out)
{
    int v = 0;
    const char *s = *p;
    while (s < end && *s >= '0' && *s <= '9' && s - *p < 8)
        v = v * 10 + (*s++ - '0');
    if (s == *p)
        return false;
    *p = s;
    *out = v;
    return true;
}

/* SCHEME, or KEYS/VALUES. */
static int find_pair(const struct tern_kv_codec **k, const struct tern_kv_codec **v, const char *p, const char *end,
                     const char *text, tern_error *err)
{
    const char *slash = memchr(p, '/', (size_t)(end - p));
    int rc = find_scheme(k, p, (size_t)((slash ? slash : end) - p), text, err);
    *v = *k;
    if (rc == 0 && slash)
        rc = find_scheme(v, slash + 1, (size_t)(end - slash - 1), text, err);
    return rc;
}

static int parse_edge(struct tern_kv_spec *s, const char *p, const char *end, const char *text, tern_error *err)
{
    if (!number(&p, end, &s->edge) || p == end || *p != ':')
        return tern_err_set(err, TERN_EINVAL, "--kv %s: edge wants N:SCHEME", text);
    return find_pair(&s->edge_k, &s->edge_v, p + 1, end, text, err);
}

static int parse_layers(struct tern_kv_spec *s, const char *p, const char *end, const char *text, tern_error *err)
{
    int rc = 0, from, to;
    if (s->n_rules == TERN_KV_MAX_RULES)
        return tern_err_set(err, TERN_ELIMIT, "--kv %s: more than %d layers= rules", text, TERN_KV_MAX_RULES);
    if (!number(&p, end, &from))
        goto bad;
    to = from;
    if (p < end && *p == '-') {
        p++;
        if (!number(&p, end, &to) || to < from)
            goto bad;
    }
    if (p == end || *p != ':')
        goto bad;
    s->rules[s->n_rules].from = from;
    s->rules[s->n_rules].to = to;
    TERN_TRY(find_pair(&s->rules[s->n_rules].k, &s->rules[s->n_rules].v, p + 1, end, text, err));
    s->n_rules++;
out:
    return rc;
bad:
    return tern_err_set(err, TERN_EINVAL, "--kv %s: layers wants A-B:SCHEME with A <= B", text);
}

static int parse_cond(struct tern_kv_spec *s, const char *p, size_t n, const char *text, tern_error *err)
{
    if (n == 0 || n >= sizeof s->cond_path)
        return tern_err_set(err, TERN_EINVAL, "--kv %s: cond wants off, norms, bias or the name of a file", text);
    memcpy(s->cond_path, p, n);
    s->cond_path[n] = 0;
    s->cond = strcmp(s->cond_path, "off") == 0     ? TERN_COND_OFF
              : strcmp(s->cond_path, "norms") == 0 ? TERN_COND_NORMS
              : strcmp(s->cond_path, "bias") == 0  ? TERN_COND_BIAS
                                                   : TERN_COND_FILE;
    return 0;
}

static bool key_is(const char *p, size_t n, const char *key)
{
    return n == strlen(key) && memcmp(p, key, n) == 0;
}

static int parse_items(struct tern_kv_spec *s, const char *p, const char *text, tern_error *err);

/* The items of a file as if they stood here: lines instead of commas, # begins a comment. */
static int parse_plan(struct tern_kv_spec *s, const char *p, size_t n, const char *text, tern_error *err)
{
    int rc = 0;
    struct tern_buf path = {0}, file = {0}, items = {0};
    if (!n)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: plan= wants the name of a file", text);
    if (s->in_plan)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: a plan file names another one", text);
    TERN_TRY(tern_buf_add(&path, p, n, err));
    TERN_TRY(tern_buf_add(&items, "", 0, err));
    TERN_TRY(tern_buf_read_regular(&file, path.p ? path.p : "", MAX_PLAN_BYTES, err));
    for (const char *line = file.p; line && *line;) {
        size_t len = strcspn(line, "\n"), used = strcspn(line, "#\n");
        while (used && (line[used - 1] == ' ' || line[used - 1] == '\r' || line[used - 1] == '\t'))
            used--;
        if (used && items.len)
            TERN_TRY(tern_buf_addc(&items, ',', err));
        TERN_TRY(tern_buf_add(&items, line, used, err));
        line += len + (line[len] == '\n');
    }
    if (!items.len)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: %s holds no plan", text, path.p);
    s->in_plan = s->from_file = true;
    rc = parse_items(s, items.p, text, err);
    s->in_plan = false;
out:
    tern_buf_clear(&path);
    tern_buf_clear(&file);
    tern_buf_clear(&items);
    return rc;
}

/* Item p..end names the scheme of keys, of values or of both. */
static void chose(struct tern_kv_spec *s, const char *p, const char *end, bool k, bool v)
{
    if (s->n_items < TERN_KV_MAX_ITEMS)
        (void)snprintf(s->item[s->n_items], sizeof s->item[0], "%.*s", (int)(end - p), p);
    s->k_item = k ? s->n_items : s->k_item;
    s->v_item = v ? s->n_items : s->v_item;
    s->n_items++;
}

static int parse_item(struct tern_kv_spec *s, const char *p, const char *end, const char *text, tern_error *err)
{
    int rc = 0;
    const char *eq = memchr(p, '=', (size_t)(end - p));
    if (!eq) {
        chose(s, p, end, true, true);
        if (turbo_pair(s, p, (size_t)(end - p)))
            return 0;
        TERN_TRY(find_scheme(&s->k, p, (size_t)(end - p), text, err));
        s->v = s->k;
        return 0;
    }
    size_t n = (size_t)(eq - p), left = (size_t)(end - eq - 1);
    const char *value = eq + 1;
    if (key_is(p, n, "k") || key_is(p, n, "v")) {
        chose(s, p, end, *p == 'k', *p == 'v');
        return find_scheme(*p == 'k' ? &s->k : &s->v, value, left, text, err);
    }
    if (key_is(p, n, "edge"))
        return parse_edge(s, value, end, text, err);
    if (key_is(p, n, "layers"))
        return parse_layers(s, value, end, text, err);
    if (key_is(p, n, "plan"))
        return parse_plan(s, value, left, text, err);
    if (key_is(p, n, "cond"))
        return parse_cond(s, value, left, text, err);
    if (key_is(p, n, "recent")) {
        if (!number(&value, end, &s->recent) || value != end || s->recent < TERN_PAGE || s->recent > MAX_RECENT ||
            s->recent % TERN_PAGE)
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: recent wants a multiple of %d from %d to %d", text, TERN_PAGE,
                      TERN_PAGE, MAX_RECENT);
        return 0;
    }
    if (key_is(p, n, "max")) {
        if (!number(&value, end, &s->max) || value != end || s->max < TERN_PAGE || s->max > MAX_MAX)
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: max wants a number of tokens from %d to %d", text, TERN_PAGE,
                      MAX_MAX);
        return 0;
    }
    if (key_is(p, n, "first")) {
        if (!number(&value, end, &s->first) || value != end || s->first > TERN_PAGE)
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: first wants a number from 0 to %d", text, TERN_PAGE);
        s->has_first = true;
        return 0;
    }
    if (key_is(p, n, "position")) {
        if (!key_is(value, left, "f16"))
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: position wants f16", text);
        s->position = true;
        return 0;
    }
    TERN_FAIL(err, TERN_EINVAL,
              "--kv %s: unknown option \"%.*s\" (known: k v first recent max edge layers position plan cond)", text,
              (int)n, p);
out:
    return rc;
}

static int parse_items(struct tern_kv_spec *s, const char *p, const char *text, tern_error *err)
{
    const char *stop = p + strlen(p);
    while (p <= stop) {
        const char *end = memchr(p, ',', (size_t)(stop - p));
        if (!end)
            end = stop;
        if (end == p)
            return tern_err_set(err, TERN_EINVAL, "--kv %s: empty item", *text ? text : "\"\"");
        int rc = parse_item(s, p, end, text, err);
        if (rc < 0)
            return rc;
        p = end + 1;
    }
    return 0;
}

int tern_kv_spec_parse(struct tern_kv_spec *out, const char *text, tern_error *err)
{
    int rc = 0;
    *out = (struct tern_kv_spec){.first = TERN_KV_FIRST, .recent = TERN_PAGE};
    TERN_TRY(parse_items(out, text, text, err));
    if (!out->k || !out->v)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: no scheme for %s", text,
                  out->k ? "values (v=SCHEME)" : "keys (k=SCHEME)");
    if (out->max && (out->max < out->recent || out->max <= out->first))
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: max=%d leaves no room beside first=%d and recent=%d", text, out->max,
                  out->first, out->recent);
out:
    return rc;
}
