/* grammar/schema.h - between the files that read JSON schemas.
 *
 *   schema.c        keywords, references, alternatives, lists of values
 *   schema_values.c values that are listed
 *   schema_merge.c  two schemas that both must hold, as one
 *   schema_types.c  texts, numbers, lists
 *   schema_object.c objects
 *
 * A keyword that is not in the table of schema.c is refused; so nothing is ignored but what says nothing about values.
 */
#ifndef TERN_GRAMMAR_SCHEMA_H
#define TERN_GRAMMAR_SCHEMA_H

#include "grammar/build.h"

struct schema {
    tern_grammar *g;
    json_t *root;
    json_t *rules;   /* reference -> rule */
    json_t *waiting; /* references whose rules are still to be defined: no recursion through them */
    json_t *made;    /* schemas that merging made: they live as long as this */
    int depth;
    unsigned steps;
    char path[160]; /* where in the schema, for messages */
};

/* What a schema accepts. */
struct tern_gr_frag tern_schema_value(struct schema *s, json_t *v);
struct tern_gr_frag tern_schema_string(struct schema *s, const json_t *v);
struct tern_gr_frag tern_schema_number(struct schema *s, const json_t *v, bool integer);
struct tern_gr_frag tern_schema_array(struct schema *s, const json_t *v);
struct tern_gr_frag tern_schema_object(struct schema *s, const json_t *v);
/* What `read` makes of a schema and what it refers to. */
struct tern_gr_frag tern_schema_read(tern_grammar *g, json_t *root,
                                     struct tern_gr_frag (*read)(struct schema *s, json_t *root));
/* The regular expression of a format, between ^ and $; NULL: there is none of that name. */
const char *tern_schema_format(const char *name);
/* How members of an object are written. */
struct tern_schema_style {
    bool commas;                                                                  /* between them */
    struct tern_gr_frag (*member)(struct schema *s, const char *name, json_t *v); /* v NULL: any value */
    struct tern_gr_frag (*other)(struct schema *s, struct tern_gr_frag name, json_t *v);
};
/* The members of objects that v accepts, without anything around them. */
struct tern_gr_frag tern_schema_members(struct schema *s, const json_t *v, const struct tern_schema_style *style);
/* The same of a schema below this one, which messages call by its name there. */
struct tern_gr_frag tern_schema_below(struct schema *s, json_t *v, const char *name);

/* Of values, not of how they are written: 1 and 1.0 are the same. */
bool tern_schema_same(const json_t *a, const json_t *b);
int tern_schema_compare(const json_t *a, const json_t *b); /* of numbers: -1, 0, 1 */
bool tern_schema_has_values(const json_t *v);              /* enum or const */
char *tern_schema_key(const json_t *v);      /* the same text for the same values, to be freed; NULL: no memory */
json_t *tern_schema_listed(const json_t *v); /* a new reference to the values that enum and const leave, no types */
/* Do both list values, and others each? */
bool tern_schema_other_values(const json_t *a, const json_t *b);
/* A new list of the values of a that b has, too. */
json_t *tern_schema_common_values(const json_t *a, const json_t *b);

/* A schema that accepts what both accept, kept in s->made; NULL has failed. */
json_t *tern_schema_merge(struct schema *s, json_t *a, json_t *b);
/* What a reference leads to; NULL has failed. */
json_t *tern_schema_find(struct schema *s, const char *ref);
bool tern_schema_is_note(const char *keyword); /* says nothing about values */

struct tern_gr_frag tern_schema_refuse(struct schema *s, int code, const char *fmt, ...) TERN_PRINTF(3, 4);
/* No value at all; the first reason is told if nothing else satisfies the schema. */
struct tern_gr_frag tern_schema_never(struct schema *s, const char *fmt, ...) TERN_PRINTF(2, 3);
void tern_schema_check_keywords(struct schema *s, const json_t *v); /* refuses those that are not known */
/* A whole number >= 0 of a keyword, or `otherwise` where v has none. */
uint32_t tern_schema_count(struct schema *s, const json_t *v, const char *keyword, uint32_t otherwise);

#endif
