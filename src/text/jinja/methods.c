/* Methods of strings, dictionaries and lists. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

/* ---- strip ----------------------------------------------------------------------------------------------------- */

struct strip_set {
    const struct jstr *chars; /* NULL: whitespace */
    bool ascii[128];
};

static int in_set(struct jrun *r, const struct strip_set *set, const char *p, size_t k, uint32_t cp, bool *in)
{
    if (!set->chars) {
        *in = tern_jutf8_space(cp);
        return 0;
    }
    if (cp < 0x80) {
        *in = set->ascii[cp];
        return 0;
    }
    JTRY(tern_jrun_charge(r, set->chars->len / 16));
    *in = memmem(set->chars->p, set->chars->len, p, k) != NULL;
    return 0;
}

int tern_jmethod_strip(struct jrun *r, const struct jstr *s, const struct jstr *chars, int sides, struct jval *out)
{
    struct strip_set set = {.chars = chars};
    size_t begin = 0, end = s->len;
    uint32_t cp;
    bool in = true;
    for (size_t i = 0; chars && i < chars->len; i++)
        if ((unsigned char)chars->p[i] < 0x80)
            set.ascii[(unsigned char)chars->p[i]] = true;
    JTRY(tern_jrun_charge(r, (chars ? chars->len : 0) / 64));
    while ((sides & JSTRIP_LEFT) && begin < end) {
        size_t k = tern_jutf8_next(s->p + begin, end - begin, &cp);
        JTRY(in_set(r, &set, s->p + begin, k, cp, &in));
        if (!in)
            break;
        begin += k;
    }
    while ((sides & JSTRIP_RIGHT) && end > begin) {
        size_t k = tern_jutf8_prev(s->p + begin, end - begin);
        (void)tern_jutf8_next(s->p + end - k, k, &cp);
        JTRY(in_set(r, &set, s->p + end - k, k, cp, &in));
        if (!in)
            break;
        end -= k;
    }
    JTRY(tern_jrun_charge(r, (s->len - (end - begin)) / 4));
    return tern_jstr_sub(r, s, begin, end - begin, out);
}

static int strip(struct jrun *r, const struct jcall *c, int sides, struct jval *out)
{
    struct jstr *chars;
    JTRY(tern_jarg_str(r, c, 0, &chars));
    return tern_jmethod_strip(r, c->self.s, chars, sides, out);
}

static int m_strip(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return strip(r, c, JSTRIP_LEFT | JSTRIP_RIGHT, out);
}

static int m_lstrip(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return strip(r, c, JSTRIP_LEFT, out);
}

static int m_rstrip(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return strip(r, c, JSTRIP_RIGHT, out);
}

/* ---- split ----------------------------------------------------------------------------------------------------- */

static int add_part(struct jrun *r, struct jlist *l, const struct jstr *s, size_t off, size_t n)
{
    struct jval v;
    JTRY(tern_jrun_charge(r, 1));
    JTRY(tern_jstr_sub(r, s, off, n, &v));
    return tern_jlist_add(r, l, v);
}

static int split_on(struct jrun *r, const struct jstr *s, const struct jstr *sep, int64_t max, struct jlist *l)
{
    size_t at = 0, hit;
    if (sep->len == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "split: the separator is empty");
    for (; max != 0 && (hit = tern_jstr_find(s, sep, at)) != SIZE_MAX; max--) {
        JTRY(add_part(r, l, s, at, hit - at));
        at = hit + sep->len;
    }
    return add_part(r, l, s, at, s->len - at);
}

static size_t skip(const struct jstr *s, size_t at, bool spaces)
{
    while (at < s->len) {
        uint32_t cp;
        size_t k = tern_jutf8_next(s->p + at, s->len - at, &cp);
        if (tern_jutf8_space(cp) != spaces)
            break;
        at += k;
    }
    return at;
}

static size_t skip_back(const struct jstr *s, size_t at, bool spaces)
{
    while (at > 0) {
        uint32_t cp;
        size_t k = tern_jutf8_prev(s->p, at);
        (void)tern_jutf8_next(s->p + at - k, k, &cp);
        if (tern_jutf8_space(cp) != spaces)
            break;
        at -= k;
    }
    return at;
}

static int split_words(struct jrun *r, const struct jstr *s, int64_t max, struct jlist *l)
{
    for (size_t at = skip(s, 0, true); at < s->len; max--) {
        size_t end = max == 0 ? s->len : skip(s, at, false);
        JTRY(add_part(r, l, s, at, end - at));
        at = skip(s, end, true);
    }
    return 0;
}

static void reverse(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jval v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static size_t find_last(const struct jstr *s, const struct jstr *what, size_t end)
{
    for (size_t i = end < what->len ? 0 : end - what->len + 1; i > 0; i--)
        if (memcmp(s->p + i - 1, what->p, what->len) == 0)
            return i - 1;
    return SIZE_MAX;
}

static int rsplit_on(struct jrun *r, const struct jstr *s, const struct jstr *sep, int64_t max, struct jlist *l)
{
    size_t end = s->len, hit;
    if (sep->len == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "rsplit: the separator is empty");
    JTRY(tern_jrun_charge(r, s->len / 8 * (sep->len / 64 + 1)));
    for (; max != 0 && (hit = find_last(s, sep, end)) != SIZE_MAX; max--) {
        JTRY(add_part(r, l, s, hit + sep->len, end - hit - sep->len));
        end = hit;
    }
    JTRY(add_part(r, l, s, 0, end));
    reverse(l);
    return 0;
}

static int rsplit_words(struct jrun *r, const struct jstr *s, int64_t max, struct jlist *l)
{
    for (size_t end = skip_back(s, s->len, true); end > 0; max--) {
        size_t at = max == 0 ? 0 : skip_back(s, end, false);
        JTRY(add_part(r, l, s, at, end - at));
        end = skip_back(s, at, true);
    }
    reverse(l);
    return 0;
}

static int m_split(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jstr *sep;
    int64_t max;
    JTRY(tern_jarg_str(r, c, 0, &sep));
    JTRY(tern_jarg_int(r, c, 1, -1, &max));
    JTRY(tern_jrun_charge(r, c->self.s->len / (sep ? 16 : 4)));
    JTRY(tern_jval_list(r, JL_LIST, 0, out));
    return sep ? split_on(r, c->self.s, sep, max, out->l) : split_words(r, c->self.s, max, out->l);
}

static int m_rsplit(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jstr *sep;
    int64_t max;
    JTRY(tern_jarg_str(r, c, 0, &sep));
    JTRY(tern_jarg_int(r, c, 1, -1, &max));
    JTRY(tern_jrun_charge(r, c->self.s->len / (sep ? 16 : 4)));
    JTRY(tern_jval_list(r, JL_LIST, 0, out));
    return sep ? rsplit_on(r, c->self.s, sep, max, out->l) : rsplit_words(r, c->self.s, max, out->l);
}

static int m_splitlines(struct jrun *r, const struct jcall *c, struct jval *out)
{
    const struct jstr *s = c->self.s;
    bool keep;
    size_t begin = 0;
    JTRY(tern_jarg_bool(r, c, 0, false, &keep));
    JTRY(tern_jrun_charge(r, s->len / 8));
    JTRY(tern_jval_list(r, JL_LIST, 0, out));
    for (size_t i = 0; i < s->len;) {
        uint32_t cp;
        size_t end = i;
        i += tern_jutf8_next(s->p + i, s->len - i, &cp);
        if (!tern_jutf8_linebreak(cp))
            continue;
        if (cp == '\r' && i < s->len && s->p[i] == '\n')
            i++;
        JTRY(add_part(r, out->l, s, begin, (keep ? i : end) - begin));
        begin = i;
    }
    return begin < s->len ? add_part(r, out->l, s, begin, s->len - begin) : 0;
}

/* The first or last occurrence cuts the string into three. */
static int partition(struct jrun *r, const struct jcall *c, bool last, struct jval *out)
{
    struct jstr *sep;
    const struct jstr *s = c->self.s;
    JTRY(tern_jarg_str(r, c, 0, &sep));
    if (!sep || sep->len == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "%s: the separator is empty", c->name);
    JTRY(tern_jrun_charge(r, last ? s->len / 8 * (sep->len / 64 + 1) : s->len / 16));
    size_t hit = last ? find_last(s, sep, s->len) : tern_jstr_find(s, sep, 0);
    size_t a = hit, b = hit + sep->len;
    if (hit == SIZE_MAX)
        a = b = last ? 0 : s->len;
    JTRY(tern_jval_list(r, JL_TUPLE, 3, out));
    JTRY(add_part(r, out->l, s, 0, a));
    JTRY(add_part(r, out->l, s, a, b - a));
    return add_part(r, out->l, s, b, s->len - b);
}

static int m_partition(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return partition(r, c, false, out);
}

static int m_rpartition(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return partition(r, c, true, out);
}

/* ---- looking for a piece --------------------------------------------------------------------------------------- */

/* The optional start and end arguments of startswith, find and count, as bytes of s.  False when they select nothing,
 * not even the empty string. */
static int window(struct jrun *r, const struct jcall *c, struct jval *part, int64_t *first, bool *empty)
{
    int64_t n, from, to;
    JTRY(tern_jval_length(r, c->self, &n));
    JTRY(tern_jarg_int(r, c, 1, 0, &from));
    JTRY(tern_jarg_int(r, c, 2, n, &to));
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    *empty = from > n || from > to;
    *first = from;
    if (from == 0 && to == n)
        *part = c->self;
    else if (!*empty)
        JTRY(tern_jstr_slice(r, c->self.s, from, 1, to - from, part));
    return 0;
}

static int piece(struct jrun *r, const struct jcall *c, struct jval v, struct jstr **out)
{
    *out = v.t == JV_STR ? v.s : NULL;
    if (!*out)
        return tern_jrun_fail(r, TERN_EINVAL, "%s needs a string, not '%s'", c->name, tern_jval_type(v));
    return 0;
}

static int with_affix(struct jrun *r, const struct jcall *c, bool end, struct jval *out)
{
    struct jval part, list = c->a[0];
    int64_t first;
    bool empty, hit = false;
    bool many = list.t == JV_LIST && list.l->kind == JL_TUPLE;
    JTRY(window(r, c, &part, &first, &empty));
    for (size_t i = 0; i < (many ? list.l->n : 1); i++) {
        struct jstr *x;
        JTRY(piece(r, c, many ? list.l->v[i] : list, &x));
        JTRY(tern_jrun_charge(r, 1 + x->len / 64));
        if (empty || x->len > part.s->len)
            continue;
        hit |= x->len == 0 || memcmp(part.s->p + (end ? part.s->len - x->len : 0), x->p, x->len) == 0;
    }
    *out = tern_jval_bool(hit);
    return 0;
}

static int m_startswith(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return with_affix(r, c, false, out);
}

static int m_endswith(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return with_affix(r, c, true, out);
}

static int search(struct jrun *r, const struct jcall *c, bool last, struct jval *out)
{
    struct jval part, head;
    struct jstr *x;
    int64_t first, n;
    bool empty;
    JTRY(piece(r, c, c->a[0], &x));
    JTRY(window(r, c, &part, &first, &empty));
    *out = tern_jval_int(-1);
    if (empty)
        return 0;
    JTRY(tern_jrun_charge(r, last ? part.s->len / 8 * (x->len / 64 + 1) : part.s->len / 16));
    size_t hit = last ? find_last(part.s, x, part.s->len) : tern_jstr_find(part.s, x, 0);
    if (hit == SIZE_MAX)
        return 0;
    JTRY(tern_jstr_sub(r, part.s, 0, hit, &head));
    JTRY(tern_jval_length(r, head, &n));
    *out = tern_jval_int(first + n);
    return 0;
}

static int m_find(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return search(r, c, false, out);
}

static int m_rfind(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return search(r, c, true, out);
}

static int m_index(struct jrun *r, const struct jcall *c, struct jval *out)
{
    JTRY(search(r, c, false, out));
    return out->i < 0 ? tern_jrun_fail(r, TERN_EINVAL, "index: substring not found") : 0;
}

static int m_count(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval part;
    struct jstr *x;
    int64_t first, n = 0;
    bool empty;
    JTRY(piece(r, c, c->a[0], &x));
    JTRY(window(r, c, &part, &first, &empty));
    if (!empty && x->len == 0) {
        JTRY(tern_jval_length(r, part, &n));
        n++;
    } else if (!empty) {
        JTRY(tern_jrun_charge(r, part.s->len / 16));
        for (size_t at = 0; (at = tern_jstr_find(part.s, x, at)) != SIZE_MAX; at += x->len, n++)
            JTRY(tern_jrun_charge(r, 1));
    }
    *out = tern_jval_int(n);
    return 0;
}

static int m_replace(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jstr *from, *to;
    int64_t max;
    JTRY(piece(r, c, c->a[0], &from));
    JTRY(piece(r, c, c->a[1], &to));
    JTRY(tern_jarg_int(r, c, 2, -1, &max));
    return tern_jstr_replace(r, c->self.s, from, to, max, out);
}

static int remove_affix(struct jrun *r, const struct jcall *c, bool end, struct jval *out)
{
    struct jstr *x;
    const struct jstr *s = c->self.s;
    JTRY(piece(r, c, c->a[0], &x));
    JTRY(tern_jrun_charge(r, x->len / 64));
    bool hit = x->len <= s->len && memcmp(s->p + (end ? s->len - x->len : 0), x->p, x->len) == 0;
    size_t cut = hit ? x->len : 0;
    return tern_jstr_sub(r, s, end ? 0 : cut, s->len - cut, out);
}

static int m_removeprefix(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return remove_affix(r, c, false, out);
}

static int m_removesuffix(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return remove_affix(r, c, true, out);
}

/* ---- case and classes ------------------------------------------------------------------------------------------ */

static int m_upper(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jstr_case(r, c->self.s, JCASE_UPPER, out);
}

static int m_lower(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jstr_case(r, c->self.s, JCASE_LOWER, out);
}

static int m_title(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jstr_case(r, c->self.s, JCASE_TITLE, out);
}

static int m_capitalize(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jstr_case(r, c->self.s, JCASE_CAPITALIZE, out);
}

enum char_class { CLASS_ALPHA = 1, CLASS_DIGIT = 2, CLASS_SPACE = 4 };

static int all_in(struct jrun *r, const struct jcall *c, int classes, struct jval *out)
{
    const struct jstr *s = c->self.s;
    bool all = s->len > 0;
    JTRY(tern_jrun_charge(r, s->len / 4));
    for (size_t i = 0; all && i < s->len;) {
        uint32_t cp;
        i += tern_jutf8_next(s->p + i, s->len - i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
        bool number = k == UTF8PROC_CATEGORY_ND || cp == 0xB2 || cp == 0xB3 || cp == 0xB9;
        all = ((classes & CLASS_ALPHA) && alpha) || ((classes & CLASS_DIGIT) && number) ||
              ((classes & CLASS_SPACE) && tern_jutf8_space(cp));
    }
    *out = tern_jval_bool(all);
    return 0;
}

static int m_isalpha(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return all_in(r, c, CLASS_ALPHA, out);
}

static int m_isdigit(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return all_in(r, c, CLASS_DIGIT, out);
}

static int m_isalnum(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return all_in(r, c, CLASS_ALPHA | CLASS_DIGIT, out);
}

static int m_isspace(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return all_in(r, c, CLASS_SPACE, out);
}

/* At least one letter with a case, and none of the other case. */
static int one_case(struct jrun *r, const struct jstr *s, bool upper, struct jval *out)
{
    bool any = false, other = false;
    JTRY(tern_jrun_charge(r, s->len / 4));
    for (size_t i = 0; i < s->len && !other;) {
        uint32_t cp;
        i += tern_jutf8_next(s->p + i, s->len - i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool up = k == UTF8PROC_CATEGORY_LU, low = k == UTF8PROC_CATEGORY_LL;
        any |= upper ? up : low;
        other = k == UTF8PROC_CATEGORY_LT || (upper ? low : up);
    }
    *out = tern_jval_bool(any && !other);
    return 0;
}

static int m_isupper(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return one_case(r, c->self.s, true, out);
}

static int m_islower(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return one_case(r, c->self.s, false, out);
}

static int m_join(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jbuild b = {0};
    struct jiter it;
    struct jval v;
    int more;
    JTRY(tern_jiter_init(r, &it, c->a[0]));
    for (size_t n = 0; (more = tern_jiter_next(r, &it, &v)) > 0; n++) {
        struct jstr *s;
        JTRY(piece(r, c, v, &s));
        if (n)
            JTRY(tern_jbuild_str(r, &b, c->self.s));
        JTRY(tern_jbuild_str(r, &b, s));
    }
    JTRY(more);
    return tern_jbuild_done(r, &b, out);
}

static const struct jbuiltin str_methods[] = {
    {"strip", "chars", 0, m_strip},
    {"lstrip", "chars", 0, m_lstrip},
    {"rstrip", "chars", 0, m_rstrip},
    {"split", "sep,maxsplit", 0, m_split},
    {"rsplit", "sep,maxsplit", 0, m_rsplit},
    {"splitlines", "keepends", 0, m_splitlines},
    {"partition", "sep", 1, m_partition},
    {"rpartition", "sep", 1, m_rpartition},
    {"startswith", "prefix,start,end", 1, m_startswith},
    {"endswith", "suffix,start,end", 1, m_endswith},
    {"find", "sub,start,end", 1, m_find},
    {"rfind", "sub,start,end", 1, m_rfind},
    {"index", "sub,start,end", 1, m_index},
    {"count", "sub,start,end", 1, m_count},
    {"replace", "old,new,count", 2, m_replace},
    {"format", NULL, 0, tern_jmethod_format},
    {"removeprefix", "prefix", 1, m_removeprefix},
    {"removesuffix", "suffix", 1, m_removesuffix},
    {"upper", "", 0, m_upper},
    {"lower", "", 0, m_lower},
    {"title", "", 0, m_title},
    {"capitalize", "", 0, m_capitalize},
    {"join", "iterable", 1, m_join},
    {"isalpha", "", 0, m_isalpha},
    {"isdigit", "", 0, m_isdigit},
    {"isalnum", "", 0, m_isalnum},
    {"isspace", "", 0, m_isspace},
    {"isupper", "", 0, m_isupper},
    {"islower", "", 0, m_islower},
    {0},
};

/* What Python's types have besides: naming these beats the "undefined" that a plain lookup would end in. */
static const char str_refused[] =
    ",casefold,center,encode,expandtabs,format_map,isascii,isdecimal,isidentifier,"
    "isnumeric,isprintable,istitle,ljust,maketrans,rindex,rjust,swapcase,translate,zfill,";
static const char dict_refused[] = ",clear,fromkeys,popitem,setdefault,";
static const char list_refused[] = ",clear,copy,remove,reverse,sort,";

static bool listed(const char *list, const char *name, size_t n)
{
    for (const char *p = list + 1; *p; p += strcspn(p, ",") + 1)
        if (strcspn(p, ",") == n && memcmp(p, name, n) == 0)
            return true;
    return false;
}

const struct jbuiltin *tern_jmethod_find(struct jval self, const char *name, size_t n, bool *refused)
{
    const struct jbuiltin *fn = NULL;
    const char *other = NULL;
    if (self.t == JV_STR) {
        fn = tern_jbuiltin_search(str_methods, name, n);
        other = str_refused;
    } else if (self.t == JV_DICT) {
        fn = tern_jbuiltin_search(tern_jmethods_dict, name, n);
        other = dict_refused;
    } else if (self.t == JV_LIST && self.l->kind <= JL_TUPLE) {
        bool list = self.l->kind == JL_LIST;
        fn = tern_jbuiltin_search(list ? tern_jmethods_list : tern_jmethods_tuple, name, n);
        other = list ? list_refused : NULL;
    }
    *refused = !fn && other && listed(other, name, n);
    return fn;
}
