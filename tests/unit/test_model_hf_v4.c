/* Directories of DeepSeek-V4 that are damaged, half there, or say what nothing computes: one sentence each. */
#include "hf_model.h"

static char *weights; /* of the committed directory */
static size_t n_weights;

static void read_weights(void)
{
    FILE *f = fopen(data_path("deepseek_v4/model.safetensors"), "rb");
    assert_non_null(f);
    weights = malloc((size_t)2 << 20);
    assert_non_null(weights);
    n_weights = fread(weights, 1, (size_t)2 << 20, f);
    assert_true(n_weights > 0 && n_weights < (size_t)2 << 20);
    (void)fclose(f);
}

/* The committed configuration, in which `to` stands for `from`; the weights as they are. */
static void place_config(const char *from, const char *to)
{
    static struct bytes b;
    read_file(&b, "deepseek_v4", "config.json");
    replace(&b, "", from, to);
    b.p[b.n] = 0;
    place("deepseek_v4", b.p);
}

static void test_configurations(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"heavily_compressed_attention\"\n", "\"full_attention\"\n", "\"full_attention\" is not supported"},
        {"\"heavily_compressed_attention\": 16", "\"heavily_compressed_attention\": 129", "129 of layer 1"},
        {"\"compressed_sparse_attention\": 4", "\"compressed_sparse_attention\": 8", "rows that are chosen are of 4"},
        {"\"compressed_sparse_attention\",\n", "", "not a list of one name for each layer"},
        {"\"layer_types\"", "\"other_types\"", "neither compress_ratios nor layer_types"},
        {"\"hash_moe\",\n    \"moe\"", "\"moe\",\n    \"hash_moe\"", "hash_moe layers before moe layers"},
        {"\"hash_moe\",\n    \"moe\"", "\"hash_moe\",\n    \"hash_moe\"",
         "\"blk.1.ffn_gate_tid2eid.weight\" is missing"},
        {"\"hash_moe\",\n    \"moe\"", "\"moe\",\n    \"moe\"", "\"blk.0.exp_probs_b.bias\" is missing"},
        {"\"hc_sinkhorn_iters\"", "\"hc_other_iters\"", "hyper_connection.sinkhorn_iterations\" is missing"},
        {"\"hc_mult\": 3", "\"hc_mult\": 9", "hyper_connection.count"},
        {"\"index_topk\"", "\"index_most\"", "attention.indexer.top_k\" is missing"},
        {"\"index_head_dim\": 32", "\"index_head_dim\": 48", "no power of two"},
        {"\"o_groups\": 3", "\"o_groups\": 4", "groups of heads that are not alike"},
        {"\"swiglu_limit\"", "\"swiglu_other\"", "swiglu_clamp_exp of layer 0 is missing"},
        {"\"sqrtsoftplus\"", "\"softmax\"", "\"softmax\" is not supported"},
        {"\"attention_factor\": 1.0", "\"attention_factor\": 1.3", "a factor other than 1"},
        {"\"sliding_window\"", "\"other_window\"", "attention.sliding_window"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        place_config(cases[i].from, cases[i].to);
        refused(cases[i].says);
    }
}

static void place_weights(size_t n)
{
    place_config("\"model_type\"", "\"model_type\"");
    (void)unlink(in_dir("model.safetensors"));
    write_bytes("model.safetensors", weights, n);
}

/* A download that ended early. */
static void test_cut_short(void **state)
{
    static const size_t missing[] = {1, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        place_weights(n_weights - missing[i]);
        refused("beyond the");
    }
    place_weights(100);
    refused("model.safetensors");
}

/* Where the table of experts by token lies in the file. */
static char *table(void)
{
    uint64_t head;
    unsigned long at;
    memcpy(&head, weights, sizeof head);
    const char *entry = memmem(weights + 8, head, "tid2eid\"", 8);
    assert_non_null(entry);
    entry = strstr(entry, "\"data_offsets\":[");
    assert_non_null(entry);
    assert_int_equal(sscanf(entry, "\"data_offsets\":[%lu", &at), 1);
    return weights + 8 + head + at;
}

static void test_table(void **state)
{
    static const struct {
        int64_t id;
        const char *says;
    } cases[] = {{4, "element 6 is expert 4, and there are 4"},
                 {-1, "element 6 is expert -1, and there are 4"},
                 {(int64_t)1 << 32, "element 6 is expert 4294967296, and there are 4"}};
    char *sixth = table() + 6 * sizeof(int64_t), text[64];
    int64_t was, other;
    (void)state;
    memcpy(&was, sixth, sizeof was);
    memcpy(&other, sixth + sizeof other, sizeof other);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(sixth, &cases[i].id, sizeof was);
        place_weights(n_weights);
        refused(cases[i].says);
    }
    memcpy(sixth, &other, sizeof other);
    (void)snprintf(text, sizeof text, "token 3 has expert %d twice", (int)other);
    place_weights(n_weights);
    refused(text);
    memcpy(sixth, &was, sizeof was);
}

static int open_weights(void **state)
{
    read_weights();
    return set_up(state);
}

static int close_weights(void **state)
{
    free(weights);
    return tear_down(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_configurations), cmocka_unit_test(test_cut_short),
                                       cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, open_weights, close_weights);
}
