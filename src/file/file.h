/* file/file.h - model files, read through a read-only memory map.
 *
 * Mental model: a file is a table of metadata (key -> typed value) and a table of tensors (name -> type, shape, bytes).
 * GGUF v2/v3, one file or a split set, or a Hugging Face directory: config.json with one or more safetensors files.
 * Both speak GGUF's language: a directory's configuration is found under GGUF's keys (and as it stands under
 * "config."), its tensors under GGUF's names; hf/words.c is the dictionary.  A quantised weight of such a directory is
 * one tensor here, whatever number of them its files have (struct tern_quant).  Everything that a file says is checked
 * before it is believed: counts against the bytes that are left, products with overflow checks, offsets against the
 * file's size, tensors against each other.  After tern_file_open succeeded, every pointer handed out is valid for its
 * stated length until tern_file_close.  Only the bytes of tensors are not looked at: a NaN scale is found when weights
 * are packed.
 *
 * A split set reads as one file: the metadata is that of its first part (later parts only say which part they are),
 * the tensors are those of all parts in order.
 *
 * A file that another program truncates while it is mapped kills the reader (SIGBUS); replace model files by renaming.
 *
 * Thread: any, read-only after open.  Errors name the file, the field and the byte offset. */
#ifndef TERN_FILE_H
#define TERN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

/* Element and block types, numbered as GGUF numbers them.
 * X(enum, GGUF id, name, elements per block, bytes per block) */
#define TERN_TYPE_LIST(X)                   \
    X(TERN_F32, 0, "F32", 1, 4)             \
    X(TERN_F16, 1, "F16", 1, 2)             \
    X(TERN_Q4_0, 2, "Q4_0", 32, 18)         \
    X(TERN_Q4_1, 3, "Q4_1", 32, 20)         \
    X(TERN_Q5_0, 6, "Q5_0", 32, 22)         \
    X(TERN_Q5_1, 7, "Q5_1", 32, 24)         \
    X(TERN_Q8_0, 8, "Q8_0", 32, 34)         \
    X(TERN_Q2_K, 10, "Q2_K", 256, 84)       \
    X(TERN_Q3_K, 11, "Q3_K", 256, 110)      \
    X(TERN_Q4_K, 12, "Q4_K", 256, 144)      \
    X(TERN_Q5_K, 13, "Q5_K", 256, 176)      \
    X(TERN_Q6_K, 14, "Q6_K", 256, 210)      \
    X(TERN_IQ2_XXS, 16, "IQ2_XXS", 256, 66) \
    X(TERN_IQ2_XS, 17, "IQ2_XS", 256, 74)   \
    X(TERN_IQ3_XXS, 18, "IQ3_XXS", 256, 98) \
    X(TERN_IQ4_NL, 20, "IQ4_NL", 32, 18)    \
    X(TERN_IQ3_S, 21, "IQ3_S", 256, 110)    \
    X(TERN_IQ2_S, 22, "IQ2_S", 256, 82)     \
    X(TERN_IQ4_XS, 23, "IQ4_XS", 256, 136)  \
    X(TERN_BF16, 30, "BF16", 1, 2)          \
    X(TERN_MXFP4, 39, "MXFP4", 32, 17)      \
    X(TERN_NVFP4, 40, "NVFP4", 64, 36)

enum tern_type {
#define TERN_TYPE_ENUM(name, id, text, elems, bytes) name = id,
    TERN_TYPE_LIST(TERN_TYPE_ENUM)
#undef TERN_TYPE_ENUM
};

#define TERN_MAX_DIMS 4

/* Name of a type ("Q4_K"); for an id that tern does not read, the name other programs give it, or "type 99" (that text
 * is valid until the same thread's next call). */
const char *tern_type_name(int type);
/* Elements and bytes of one block; 0 for an unknown type. */
int tern_type_elems(int type);
int tern_type_bytes(int type);

/* Elements that occur only inside a weight of several tensors (struct tern_quant), as whole numbers, I32 and I64, in
 * tables of ids, or in tensors that are no part of the model; nothing is multiplied by them. */
enum tern_raw_type {
    TERN_I8 = 24,
    TERN_I16 = 25,
    TERN_I32 = 26,
    TERN_I64 = 27,
    TERN_F64 = 28,
    TERN_U8 = 1 << 16,
    TERN_U32,
    TERN_F8_E4M3,
    TERN_F8_E8M0,
    TERN_F8_E5M2,
    TERN_BOOL,
    TERN_U16,
    TERN_U64
};

/* Is a tensor of that type made of numbers that tern reads as weights? */
static inline bool tern_type_is_weight(int type)
{
    return type < TERN_I8 || (type > TERN_F64 && type < TERN_U8);
}

/* How the weights of a matrix [n, k] lie in a file.  Rows of data follow one another; so do rows of scales and zeros.
 */
enum tern_weight_form {
    TERN_FORM_PLAIN, /* elements or blocks of `type`: everything in GGUF, and unquantised tensors of other containers */
    /* MLX affine: w = scale * q + zero.  data: a row is one stream of `bits` (2 3 4 5 6 8) per input, lowest bits
     * first. scales, zeros: [n][k/group], elements of scale_type; group 32, 64 or 128. */
    TERN_FORM_AFFINE,
    /* data: [n][k/2] bytes of two E2M1, the even input in the low nibble; scales: [n][k/32] bytes, 2^(s-127). */
    TERN_FORM_MXFP4,
    TERN_FORM_NVFP4, /* data as MXFP4; scales: [n][k/16] bytes E4M3; times factors */
    TERN_FORM_MXFP8, /* data: [n][k] bytes E4M3; scales as MXFP4 */
    /* data: [n][k] bytes E4M3; one scale of scale_type per group_rows rows x group inputs (0: per all of them), what is
     * left over at the ends of rows and columns counting as whole: [n / group_rows][k / group]. */
    TERN_FORM_FP8,
    /* w = scale * (q - z).  Nibbles q in 32-bit words, eight inputs of one output: data [k/8][n]; scales
     * [k/group][n] of scale_type; z in words of eight outputs: zeros [k/group][n/8]; z is one more than what is stored
     * when zero_plus_one (GPTQ version 1).  group: any multiple of 32 (0: k); inputs whose groups lie scattered
     * (g_idx of another order) have no form. */
    TERN_FORM_GPTQ,
    /* As GPTQ, with eight outputs in a word of data: [k][n/8]; data and zeros in the order 0 2 4 6 1 3 5 7 from the low
     * nibble on. */
    TERN_FORM_AWQ
};

/* What makes a matrix of codes one of weights: the other tensors, which the table of tensors does not show. */
struct tern_quant {
    enum tern_weight_form form;
    int bits;       /* of a code */
    int group;      /* inputs that share a scale; 0: all of a row */
    int group_rows; /* FP8: rows that share one; 0: all */
    bool zero_plus_one;
    const struct tern_tensor *scales;
    const struct tern_tensor *zeros;   /* NULL: the form has none */
    const struct tern_tensor *factors; /* NULL: 1 */
    size_t stride;                     /* of the scales of a tensor with a stride, as its own */
    const char *about;                 /* "affine 4 bit, groups of 64" */
};

struct tern_tensor {
    const char *name;   /* in GGUF's words, NUL-terminated, owned by the file */
    const char *source; /* what the file calls it, for messages and reports */
    float add;          /* elements mean what they say plus this: 0, or 1 for norms that hold w of 1+w */
    bool minus_exp;     /* elements mean -exp of what they say */
    bool turned;        /* each matrix lies as [dims[0]][dims[1]]: outputs are contiguous */
    size_t stride; /* bytes from a matrix of a stack to the next, where something else lies between; 0: nothing does */
    bool unused;   /* no part of the text model: an image tower, an output matrix that is tied */
    int type;      /* enum tern_type, always one that tern reads; enum tern_raw_type with quant */
    const struct tern_quant *quant; /* dims count weights, data are their codes; NULL: elements or blocks of type */
    int n_dims;                     /* 1..4 */
    int64_t dims[TERN_MAX_DIMS];    /* dims[0] is contiguous (a matrix [n_out, n_in] has dims {n_in, n_out}); rest 1 */
    const void *data;               /* view into the map, until close; any alignment >= 1 */
    size_t n_bytes;
    uint64_t file_offset; /* of data in its file part, for messages */
};

/* The other tensors of a weight, in a fixed order, and NULL behind them; their number.  They are not in the table. */
#define TERN_TENSOR_PARTS 3
static inline int tern_tensor_parts(const struct tern_tensor *t, const struct tern_tensor *parts[TERN_TENSOR_PARTS])
{
    const struct tern_quant none = {0}, *q = t->quant ? t->quant : &none;
    int n = 0;
    parts[0] = parts[1] = parts[2] = NULL;
    if (q->scales)
        parts[n++] = q->scales;
    if (q->zeros)
        parts[n++] = q->zeros;
    if (q->factors)
        parts[n++] = q->factors;
    return n;
}

enum tern_meta_type { TERN_META_INT, TERN_META_FLOAT, TERN_META_BOOL, TERN_META_STRING, TERN_META_ARRAY };

struct tern_str {
    const char *p; /* not NUL-terminated; may hold any bytes */
    size_t n;
};

struct tern_meta {
    const char *key;
    const char *source; /* where the file says it, for messages */
    enum tern_meta_type type;
    enum tern_meta_type elem; /* of an array */
    uint8_t stored;       /* 1 + GGUF's number of the value's type, of an array its elements'; 0: another container */
    bool odd;             /* INT, BOOL, or an array with such: a u64 above INT64_MAX, a bool that is neither 0 nor 1 */
    int64_t i;            /* INT and BOOL; where odd, its bits */
    double f;             /* FLOAT; also INT converted */
    struct tern_str s;    /* STRING */
    size_t n;             /* ARRAY: number of elements */
    const void *arr;      /* ARRAY: decoded elements: int64_t[], double[] or struct tern_str[]; BOOL as int64_t */
    uint64_t file_offset; /* of the value */
};

struct tern_file;

/* Opens a GGUF file, or the whole set when `path` is (any) part NAME-00001-of-000NN.gguf; or a Hugging Face model when
 * it is the directory, its model.safetensors or its model.safetensors.index.json.  *out NULL on failure. */
int tern_file_open(struct tern_file **out, const char *path, tern_error *err);
void tern_file_close(struct tern_file **f); /* accepts NULL and *f == NULL; sets *f NULL */

/* The same for a file that lies in memory: `bytes` are borrowed until close, `name` stands in messages for the path.
 * A part of a split set is refused. */
int tern_file_open_memory(struct tern_file **out, const void *bytes, size_t n_bytes, const char *name, tern_error *err);

/* Which container it is. */
enum tern_file_kind { TERN_FILE_GGUF, TERN_FILE_HF };
enum tern_file_kind tern_file_kind(const struct tern_file *f);

/* As given to open. */
const char *tern_file_path(const struct tern_file *f);
/* Path of the part that holds tensor `t` of this file; together with t->file_offset it places an error. */
const char *tern_file_tensor_path(const struct tern_file *f, const struct tern_tensor *t);
/* Sum of the sizes of all parts in bytes. */
size_t tern_file_bytes(const struct tern_file *f);

size_t tern_file_n_tensors(const struct tern_file *f);
const struct tern_tensor *tern_file_tensor_at(const struct tern_file *f, size_t i);
/* NULL when absent.  O(1). */
const struct tern_tensor *tern_file_tensor(const struct tern_file *f, const char *name);

size_t tern_file_n_meta(const struct tern_file *f);
const struct tern_meta *tern_file_meta_at(const struct tern_file *f, size_t i);
const struct tern_meta *tern_file_meta(const struct tern_file *f, const char *key); /* NULL when absent; O(1) */

/* Typed reads.  A missing key returns the default (get_*) or fails naming the key (need_*); a value of the wrong type
 * or outside [min, max], or an odd one, always fails, naming file, key and offset.  get_float also takes integers, and
 * refuses NaN and infinities. */
int tern_file_get_int(const struct tern_file *f, const char *key, int64_t def, int64_t min, int64_t max, int64_t *out,
                      tern_error *err);
int tern_file_need_int(const struct tern_file *f, const char *key, int64_t min, int64_t max, int64_t *out,
                       tern_error *err);
int tern_file_get_float(const struct tern_file *f, const char *key, double def, double *out, tern_error *err);
int tern_file_get_bool(const struct tern_file *f, const char *key, bool def, bool *out, tern_error *err);
/* Missing: out->p NULL, n 0. */
int tern_file_get_str(const struct tern_file *f, const char *key, struct tern_str *out, tern_error *err);

/* Reads a text that lies beside a Hugging Face model ("tokenizer.json"), of at most `max` bytes.  *found is false when
 * there is none, or a device (/dev/null masks a file); a GGUF file has nothing beside it. */
int tern_file_beside(const struct tern_file *f, const char *name, size_t max, struct tern_buf *out, bool *found,
                     tern_error *err);

/* Tells the system that the pages behind [data, data+bytes) of a tensor are not needed any more (they can be read
 * again from the file); keeps the resident set small while weights are repacked. */
void tern_file_forget(const struct tern_file *f, const struct tern_tensor *t);

/* Sums up what the system says about all parts (struct tern_map_id): while it stays the same, nothing has written to
 * the file or replaced it.  0: says nothing, because the file changed within the last seconds (two changes could carry
 * one time) or lies in memory. */
uint64_t tern_file_stamp(const struct tern_file *f, uint64_t seed);

#endif
