/* What registries list is tested: an architecture, a model_type, a KV scheme or a device without a committed model
 * fails here, and so does a model that its tests do not know. */
#include "codec/codec.h"
#include "dev/dev.h"
#include "file/hf_family.h"
#include "fixtures.h"
#include "model/arch/arch.h"
#include "tiny_promises.h"

#define LEDGER_MAX (512 * 1024)

/* The committed digests, between line ends. */
static char *ledger(void)
{
    static char text[LEDGER_MAX];
    if (*text)
        return text;
    FILE *f = fopen(TERN_TEST_DATA "/ledger.txt", "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    assert_true(n > 0 && n < sizeof text - 1);
    return text;
}

static bool listed(const char *model)
{
    char line[128];
    (void)snprintf(line, sizeof line, "exact %s ", model);
    return strstr(ledger(), line) != NULL;
}

/* Is there a line "... MODEL  SCHEME  DIGEST"? */
static bool listed_scheme(const char *scheme)
{
    char column[64];
    (void)snprintf(column, sizeof column, " %s ", scheme);
    return strstr(ledger(), column) != NULL;
}

static void test_architectures(void **state)
{
    struct fixtures files;
    bool seen[64] = {false};
    int missing = 0;
    (void)state;
    fixtures_find(&files, "tiny", ".gguf");
    for (int i = 0; i < files.n; i++) {
        char path[512], model[64];
        (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, files.names[i]);
        (void)snprintf(model, sizeof model, "tiny/%s", files.names[i]);
        const struct fixture x = fixture_read(path);
        for (int a = 0; tern_archs[a]; a++)
            seen[a] |= strcmp(tern_archs[a]->name, x.arch) == 0 && listed(model);
    }
    for (int a = 0; tern_archs[a]; a++) {
        assert_true(a < 64);
        if (!seen[a])
            print_message("architecture %s: no model of it in tests/data/tiny that the ledger lists\n",
                          tern_archs[a]->name);
        missing += !seen[a];
    }
    assert_int_equal(missing, 0);
}

static void test_model_types(void **state)
{
    struct fixtures dirs;
    struct fixture about[FIXTURES_MAX];
    const char *arch;
    int missing = 0;
    (void)state;
    fixtures_find(&dirs, "hf", ".logits.npy");
    for (int i = 0; i < dirs.n; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/hf/%s", TERN_TEST_DATA, dirs.names[i]);
        about[i] = fixture_read(path);
    }
    for (int k = 0; tern_hf_family_at(k, &arch); k++) {
        const char *type = tern_hf_family_at(k, &arch)->model_type;
        bool seen = false;
        for (int i = 0; i < dirs.n; i++) {
            char model[64];
            (void)snprintf(model, sizeof model, "hf/%s", dirs.names[i]);
            seen |= !about[i].quantised && strcmp(about[i].model_type, type) == 0 && listed(model);
            if (strcmp(about[i].model_type, type) == 0)
                assert_string_equal(about[i].arch, arch);
        }
        if (!seen)
            print_message("model_type %s: no directory of it in tests/data/hf that the ledger lists\n", type);
        missing += !seen;
    }
    assert_int_equal(missing, 0);
}

static void test_schemes(void **state)
{
    int missing = 0;
    (void)state;
    for (int i = 0; tern_kv_codecs[i]; i++) {
        bool seen = listed_scheme(tern_kv_codecs[i]->name);
        if (!seen)
            print_message("KV scheme %s: the ledger has no line of it\n", tern_kv_codecs[i]->name);
        missing += !seen;
    }
    assert_int_equal(missing, 0);
}

/* One model of each kind of mixer, on every device that this machine has: the reference's logits. */
static void test_devices(void **state)
{
    static const char *const models[] = {"llama-tied", "deepseek2-lite", "qwen35", "gemma4-small"};
    const struct tern_dev_ops *devices[16];
    int n = 0;
    (void)state;
    for (; tern_dev_at(n); n++) {
        assert_true(n < 16);
        devices[n] = tern_dev_at(n);
    }
    for (int i = 0; i < n; i++) {
        struct tern_dev *dev;
        tern_error err = {0};
        if (devices[i]->open(&dev, devices[i], NULL, &err) < 0) {
            print_message("device %s is not looked at: %s\n", devices[i]->name, err.msg);
            continue;
        }
        devices[i]->close(dev);
        tern_dev_add_first(devices[i]);
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            struct tiny t;
            tiny_open(&t, models[m], models[m], models[m]);
            tiny_exact_parity(&t, 1e-4, models[m]);
            tiny_close(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_model_types),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
