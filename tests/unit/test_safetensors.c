/* Safetensors directories: what a good one reads as, and every kind of lie that its three files can tell. */
#include "scratch.h"

#include "file/file.h"

#define CONFIG                                                                                                  \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"list\": [1, 2.5], \"empty\": [], \"none\": null, " \
    "\"mixed\": [1, \"x\"], \"deep\": {\"flag\": true, \"words\": [\"a\", \"b\\u00e9\"]}}"

/* A file of this header and n_data bytes 0, 1, 2 ... */
static void write_tensors(const char *name, const char *header, size_t n_data)
{
    uint8_t bytes[4096];
    uint64_t n = strlen(header);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + n + i] = (uint8_t)i;
    write_bytes(name, bytes, 8 + n + n_data);
}

/* Opens `path` and expects code and words; 0: it opens, and all bytes can be read. */
static void expect(const char *path, int code, const char *words)
{
    struct tern_file *f;
    tern_error err = {0};
    int rc = tern_file_open(&f, path, &err);
    if (rc != code || (code && !strstr(err.msg, words)) || (code && f))
        fail_msg("%d \"%s\", expected %d \"%s\"", rc, err.msg, code, words);
    uint64_t sum = 0;
    for (size_t i = 0; f && i < tern_file_n_tensors(f); i++)
        for (size_t k = 0; k < tern_file_tensor_at(f, i)->n_bytes; k++)
            sum += ((const uint8_t *)tern_file_tensor_at(f, i)->data)[k];
    assert_true(sum < UINT64_MAX);
    tern_file_close(&f);
}

static void test_good(void **state)
{
    struct tern_file *f;
    tern_error err = {0};
    (void)state;
    write_text("config.json", CONFIG);
    write_tensors("model.safetensors",
                  "{\"__metadata__\": {\"format\": \"pt\"}, \"model.layers.1.self_attn.q_proj.weight\": {\"dtype\": "
                  "\"BF16\", \"shape\": [2, 3], \"data_offsets\": [4, 16]}, \"model.scalar\": {\"dtype\": \"F32\", "
                  "\"shape\": [], \"data_offsets\": [0, 4]}, \"vision_tower.x\": {\"dtype\": \"F16\", \"shape\": "
                  "[1, 3, 1, 1, 2], \"data_offsets\": [16, 28]}}   ",
                  28);
    assert_int_equal(tern_file_open(&f, dir, &err), 0);
    assert_int_equal(tern_file_kind(f), TERN_FILE_HF);
    assert_int_equal(tern_file_n_tensors(f), 3);
    const struct tern_tensor *t = tern_file_tensor(f, "blk.1.attn_q.weight");
    assert_non_null(t);
    assert_string_equal(t->source, "model.layers.1.self_attn.q_proj.weight");
    assert_int_equal(t->type, TERN_BF16);
    assert_true(t->dims[0] == 3 && t->dims[1] == 2 && t->dims[2] == 1 && t->n_dims == 2 && t->n_bytes == 12);
    assert_int_equal(*(const uint8_t *)t->data, 4);
    assert_string_equal(tern_file_tensor_path(f, t), in_dir("model.safetensors"));
    assert_int_equal(tern_file_tensor(f, "model.scalar")->dims[0], 1);
    const struct tern_tensor *tower = tern_file_tensor(f, "vision_tower.x"); /* five dims: the outer two as one */
    assert_true(tower->unused && tower->n_dims == 4 && tower->dims[0] == 2 && tower->dims[3] == 3);
    tern_file_forget(f, t);
    assert_int_equal(*(const uint8_t *)t->data, 4);

    const struct tern_meta *m = tern_file_meta(f, "config.list");
    assert_true(m->type == TERN_META_ARRAY && m->elem == TERN_META_FLOAT && m->n == 2);
    assert_true(((const double *)m->arr)[0] == 1 && ((const double *)m->arr)[1] == 2.5);
    assert_true(tern_file_meta(f, "config.empty")->n == 0);
    assert_null(tern_file_meta(f, "config.none"));
    assert_int_equal(tern_file_meta(f, "config.mixed.0")->i, 1);
    assert_int_equal(tern_file_meta(f, "config.mixed.1")->s.n, 1);
    assert_int_equal(tern_file_meta(f, "config.deep.flag")->i, 1);
    assert_int_equal(((const struct tern_str *)tern_file_meta(f, "config.deep.words")->arr)[1].n, 3);
    assert_int_equal(tern_file_meta(f, "llama.block_count")->i, 2);
    assert_string_equal(tern_file_meta(f, "llama.block_count")->source, "config.num_hidden_layers");
    struct tern_buf text = {0};
    bool found;
    assert_int_equal(tern_file_beside(f, "config.json", 1024, &text, &found, &err), 0);
    assert_true(found && text.len == strlen(CONFIG));
    assert_int_equal(tern_file_beside(f, "config.json", 10, &text, &found, &err), TERN_ELIMIT);
    assert_int_equal(tern_file_beside(f, "nothing", 1024, &text, &found, &err), 0);
    assert_false(found);
    tern_buf_clear(&text);
    tern_file_close(&f);
    clear_dir();
}

/* What is no part of the model may have elements that no weight has. */
static void test_odd_elements(void **state)
{
    static const struct {
        const char *dtype;
        int bytes;
    } odd[] = {{"BOOL", 1}, {"F64", 8}, {"I16", 2}, {"U16", 2}, {"U64", 8}, {"F8_E5M2", 1}, {"I8", 1}, {"I64", 8}};
    (void)state;
    write_text("config.json", CONFIG);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int part = 0; part < 2; part++) {
            char header[256], words[64];
            (void)snprintf(header, sizeof header,
                           "{\"%s\": {\"dtype\": \"%s\", \"shape\": [3], \"data_offsets\": [0, %d]}}",
                           part ? "model.norm.weight" : "vision_tower.mask", odd[i].dtype, 3 * odd[i].bytes);
            (void)snprintf(words, sizeof words, "dtype \"%s\" is not supported", odd[i].dtype);
            write_tensors("model.safetensors", header, (size_t)(3 * odd[i].bytes));
            expect(dir, part ? TERN_EUNSUPPORTED : 0, words);
        }
    write_tensors("model.safetensors",
                  "{\"vision_tower.x\": {\"dtype\": \"C64\", \"shape\": [1], \"data_offsets\": [0, 8]}}", 8);
    expect(dir, TERN_EUNSUPPORTED, "dtype \"C64\" is not supported");
    clear_dir();
}

#define X(dtype, shape, offsets) \
    "{\"x\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": " offsets "}}"
#define TWO(a, b)                                                             \
    "{\"x\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": " a "}, " \
    "\"y\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": " b "}}"

static void test_bad_headers(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        int code;
        const char *words;
    } cases[] = {
        {X("F32", "[2]", "[0, 8]"), 8, 0, NULL},
        {"[]", 0, TERN_EFORMAT, "a list, not an object"},
        {"{", 0, TERN_EFORMAT, "malformed JSON"},
        {"{\"x\": 1}", 0, TERN_EFORMAT, "not described by dtype, shape and data_offsets alone"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, TERN_EFORMAT, "not described by"},
        {"{\"\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, TERN_ELIMIT, "0 bytes"},
        {X("F32", "[2]", "[0, 8]") " x", 8, TERN_EFORMAT, "malformed JSON"},
        {X("I64", "[1]", "[0, 8]"), 8, TERN_EUNSUPPORTED, "dtype \"I64\" is not supported"},
        {X("F32", "2", "[0, 8]"), 8, TERN_EFORMAT, "shape is no list"},
        {X("F32", "[1, 1, 1, 1, 1, 1, 1, 1, 2]", "[0, 8]"), 8, TERN_EFORMAT, "shape is no list of at most 8"},
        {X("F32", "[2, 0]", "[0, 0]"), 0, TERN_EFORMAT, "number 1 of its shape is not a positive"},
        {X("F32", "[-2]", "[0, 8]"), 8, TERN_EFORMAT, "number 0 of its shape is not a positive"},
        {X("F32", "[2.0]", "[0, 8]"), 8, TERN_EFORMAT, "number 0 of its shape is not a positive"},
        {X("F32", "[4611686018427387904, 4]", "[0, 0]"), 0, TERN_EFORMAT, "makes the tensor too large"},
        {X("F32", "[99999999999999999999]", "[0, 0]"), 0, TERN_EFORMAT, "malformed JSON: too big integer"},
        {X("F32", "[2]", "[0]"), 8, TERN_EFORMAT, "not two ascending numbers"},
        {X("F32", "[2]", "[8, 0]"), 8, TERN_EFORMAT, "not two ascending numbers"},
        {X("F32", "[2]", "[-8, 0]"), 8, TERN_EFORMAT, "not two ascending numbers"},
        {X("F32", "[2]", "[0, 12]"), 8, TERN_EFORMAT, "its data end at 12, beyond the 8 bytes"},
        {X("F32", "[2]", "[0, 4]"), 8, TERN_EFORMAT, "hold 4 bytes, its shape and dtype 8"},
        {X("F32", "[2]", "[0, 8]"), 9, TERN_EFORMAT, "1 bytes belong to no tensor"},
        {TWO("[0, 4]", "[5, 9]"), 9, TERN_EFORMAT, "leave a hole before them"},
        {TWO("[0, 4]", "[3, 7]"), 7, TERN_EFORMAT, "overlap another tensor's"},
        {TWO("[0, 4]", "[0, 4]"), 4, TERN_EFORMAT, "overlap another tensor's"},
        {"{\"x\": 1, \"x\": 1}", 0, TERN_EFORMAT, "duplicate object key"},
    };
    (void)state;
    write_text("config.json", CONFIG);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_tensors("model.safetensors", cases[i].header, cases[i].n_data);
        expect(dir, cases[i].code, cases[i].words);
    }
    uint64_t huge[2] = {(uint64_t)1 << 62, 0};
    write_bytes("model.safetensors", huge, sizeof huge);
    expect(dir, TERN_EFORMAT, "this is not a safetensors file");
    write_bytes("model.safetensors", huge, 7);
    expect(dir, TERN_EFORMAT, "the file ends inside the length of the header");
    write_bytes("model.safetensors", huge, 0);
    expect(dir, TERN_EFORMAT, "the file is empty");
    clear_dir();
}

#define Y "{\"y\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [0, 2]}}"

static void test_bad_indexes(void **state)
{
    static const struct {
        const char *index;
        int code;
        const char *words;
    } cases[] = {
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"}, \"metadata\": {}}", 0, NULL},
        {"{\"weight_map\": {}}", TERN_EFORMAT, "weight_map is missing or empty"},
        {"{\"weight_map\": [1]}", TERN_EFORMAT, "weight_map is missing or empty"},
        {"{\"weight_map\": {\"x\": 1}}", TERN_EFORMAT, "the name of its file is no string"},
        {"{\"weight_map\": {\"x\": \"../a.safetensors\"}}", TERN_EFORMAT, "no safetensors file of this directory"},
        {"{\"weight_map\": {\"x\": \"/etc/a.safetensors\"}}", TERN_EFORMAT, "no safetensors file of this directory"},
        {"{\"weight_map\": {\"x\": \"config.json\"}}", TERN_EFORMAT, "no safetensors file of this directory"},
        {"{\"weight_map\": {\"x\": \"c.safetensors\"}}", TERN_ENOENT, "\"c.safetensors\" that it names is missing"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"z\": \"b.safetensors\"}}", TERN_EMISMATCH,
         "tensor \"y\": it is not listed, but lies in b.safetensors"},
        {"{\"weight_map\": {\"x\": \"b.safetensors\", \"y\": \"a.safetensors\"}}", TERN_EMISMATCH,
         "listed for another file than the one that holds it, a.safetensors"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"z\": \"a.safetensors\"}}", TERN_EMISMATCH,
         "tensor \"z\": it is not in its file, a.safetensors"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"x\": \"a.safetensors\"}}", TERN_EFORMAT,
         "duplicate object key"},
    };
    (void)state;
    write_text("config.json", CONFIG);
    write_tensors("a.safetensors", X("F32", "[2]", "[0, 8]"), 8);
    write_tensors("b.safetensors", Y, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("model.safetensors.index.json", cases[i].index);
        expect(dir, cases[i].code, cases[i].words);
        expect(in_dir("model.safetensors.index.json"), cases[i].code, cases[i].words);
    }
    clear_dir();
}

static void test_bad_directories(void **state)
{
    (void)state;
    expect(dir, TERN_ENOENT, "the directory has neither model.safetensors nor model.safetensors.index.json");
    write_tensors("model.safetensors", X("F32", "[2]", "[0, 8]"), 8);
    expect(dir, TERN_ENOENT, "config.json: cannot open the file");
    write_text("config.json", "{\"model_type\": \"llama\", \"a.b\": 1, \"a\": {\"b\": 2}}");
    expect(dir, TERN_EFORMAT, "config.a.b\": the file says this in two ways");
    char deep[1024] = "{\"model_type\": \"llama\"";
    size_t n = strlen(deep);
    for (int i = 0; i < 40; i++)
        n += (size_t)snprintf(deep + n, sizeof deep - n, "%s\"b\": {", i ? "" : ", ");
    memset(deep + n, '}', 41);
    write_text("config.json", deep);
    expect(in_dir("model.safetensors"), TERN_ELIMIT, "nested too deeply");
    write_text("config.json", "{\"model_type\": \"llama\", \"\\ud800\": 1}");
    expect(dir, TERN_EFORMAT, "malformed JSON");
    expect(in_dir("none.safetensors"), TERN_EFORMAT, "malformed JSON");
    write_text("config.json", CONFIG);
    expect(in_dir("none.safetensors"), TERN_ENOENT, "cannot open the file");
    clear_dir();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_odd_elements),    cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_indexes), cmocka_unit_test(test_bad_directories),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
