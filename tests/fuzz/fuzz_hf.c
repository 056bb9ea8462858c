/* Any bytes as the files of a Hugging Face directory: up to the first NUL model.safetensors.index.json, up to the
 * second generation_config.json, then the file a.safetensors; b.safetensors and config.json are sound.  Opening ends in
 * a file that can be read to its last byte or in a sentence that names the directory; whatever sampling the model
 * recommends is one that the sampler takes. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "recommended.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];
static volatile uint64_t sink;

static const char *in_dir(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_bytes(const char *name, const void *p, size_t n)
{
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n || close(fd) < 0)
        abort();
}

static void clean_up(void)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json", "a.safetensors",
                                        "b.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)unlink(in_dir(names[i]));
    (void)rmdir(dir);
}

static void set_up(void)
{
    static const char config[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 1}";
    static const char header[] =
        "{\"model.norm.weight\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}";
    uint8_t b[8 + sizeof header - 1 + 8] = {sizeof header - 1};
    memcpy(b + 8, header, sizeof header - 1);
    (void)snprintf(dir, sizeof dir, "%s/tern-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        abort();
    write_bytes("config.json", config, sizeof config - 1);
    write_bytes("b.safetensors", b, sizeof b);
    (void)atexit(clean_up);
}

static void walk(const struct tern_file *f)
{
    for (size_t i = 0; i < tern_file_n_tensors(f); i++) {
        const struct tern_tensor *t = tern_file_tensor_at(f, i);
        const uint8_t *p = t->data;
        if (tern_file_tensor(f, t->name) != t || t->n_bytes == 0)
            abort();
        sink += (uint64_t)p[0] + p[t->n_bytes - 1];
        if (strncmp(tern_file_tensor_path(f, t), dir, strlen(dir)) != 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n_index = nul ? (size_t)(nul - data) : size;
    const uint8_t *second = nul ? memchr(nul + 1, 0, size - n_index - 1) : NULL;
    size_t n_generation = nul ? (second ? (size_t)(second - nul) : size - n_index) - 1 : 0;
    struct tern_file *f;
    tern_error err = {0};
    if (!dir[0])
        set_up();
    write_bytes("model.safetensors.index.json", data, n_index);
    write_bytes("a.safetensors", second ? second + 1 : data, second ? size - (size_t)(second - data) - 1 : 0);
    int rc = tern_file_open(&f, dir, &err);
    if (rc == 0) {
        walk(f);
        check_recommended(f, nul ? nul + 1 : data, n_generation);
    } else if (f || err.code != rc || (strlen(err.msg) < 150 && !strstr(err.msg, "/tern-fuzz-"))) {
        abort(); /* a longer message may show but the end of the path */
    }
    tern_file_close(&f);
    return 0;
}
