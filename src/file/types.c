#include "file/file.h"

#include <stdio.h>

struct known_type {
    int id;
    const char *name;
    int elems, bytes; /* 0: tern does not read it */
};

/* Types that appear in files in the wild but that tern does not read are here to be refused by name. */
static const struct known_type known_types[] = {
#define KNOWN_TYPE_ROW(e, id, text, elems, bytes) {id, text, elems, bytes},
    TERN_TYPE_LIST(KNOWN_TYPE_ROW)
#undef KNOWN_TYPE_ROW
        {4, "Q4_2", 0, 0},
    {5, "Q4_3", 0, 0},
    {9, "Q8_1", 0, 0},
    {15, "Q8_K", 0, 0},
    {19, "IQ1_S", 0, 0},
    {TERN_I8, "I8", 1, 1},
    {TERN_I16, "I16", 1, 2},
    {TERN_I32, "I32", 1, 4},
    {TERN_I64, "I64", 1, 8},
    {TERN_F64, "F64", 1, 8},
    {29, "IQ1_M", 0, 0},
    {31, "Q4_0_4_4", 0, 0},
    {32, "Q4_0_4_8", 0, 0},
    {33, "Q4_0_8_8", 0, 0},
    {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},
    {36, "IQ4_NL_4_4", 0, 0},
    {37, "IQ4_NL_4_8", 0, 0},
    {38, "IQ4_NL_8_8", 0, 0},
    {41, "Q1_0", 0, 0},
    {42, "Q2_0", 0, 0},
    {TERN_U8, "U8", 0, 0},
    {TERN_U32, "U32", 0, 0},
    {TERN_F8_E4M3, "F8_E4M3", 0, 0},
    {TERN_F8_E8M0, "F8_E8M0", 0, 1},
    {TERN_F8_E5M2, "F8_E5M2", 0, 1},
    {TERN_BOOL, "BOOL", 0, 1},
    {TERN_U16, "U16", 0, 2},
    {TERN_U64, "U64", 0, 8},
};

static const struct known_type *find_type(int type)
{
    for (size_t i = 0; i < sizeof known_types / sizeof known_types[0]; i++)
        if (known_types[i].id == type)
            return &known_types[i];
    return NULL;
}

const char *tern_type_name(int type)
{
    static _Thread_local char unnamed[32];
    const struct known_type *t = find_type(type);
    if (t)
        return t->name;
    (void)snprintf(unnamed, sizeof unnamed, "type %d", type);
    return unnamed;
}

int tern_type_elems(int type)
{
    const struct known_type *t = find_type(type);
    return t ? t->elems : 0;
}

int tern_type_bytes(int type)
{
    const struct known_type *t = find_type(type);
    return t ? t->bytes : 0;
}
