#include "run/prefix/record.h"

int tern_record_put_page(struct tern_record *to, const struct tern_kv_cache *c, const struct tern_kv_slice *s,
                         tern_error *err)
{
    uint8_t *bytes = (uint8_t *)to + sizeof *to;
    to->kind = TERN_RECORD_PAGE;
    for (int i = 0; i < TERN_KV_PARTS; i++) {
        if (s->part[i] == TERN_NO_BLOCK)
            continue;
        to->has |= 1u << i;
        to->part_bytes[to->n_parts] = tern_kv_part_bytes(c, i);
        tern_kv_part_read(c, s, i, bytes);
        bytes += to->part_bytes[to->n_parts++];
    }
    return tern_dev_fault(c->dev, true, err);
}

int tern_record_put_point(struct tern_record *to, const struct tern_kv_checkpoint *p, tern_error *err)
{
    to->kind = p->logits ? TERN_RECORD_END : TERN_RECORD_STATE;
    to->n_parts = 1;
    to->part_bytes[0] = tern_kv_checkpoint_packed_bytes(p);
    tern_kv_checkpoint_pack(p, (uint8_t *)to + sizeof *to);
    return tern_dev_fault(p->cache->dev, true, err);
}

size_t tern_record_most(const tern_engine *e)
{
    size_t most = 0;
    const size_t n_vocab = (size_t)e->model->net->desc.n_vocab;
    for (int i = 0; i < e->n_plans; i++) {
        const struct tern_kv_cache *c = &e->caches[i];
        size_t page = 0, point = tern_kv_checkpoint_most_bytes(c, n_vocab);
        for (int part = 0; part < TERN_KV_PARTS; part++)
            page += tern_kv_part_bytes(c, part);
        page = page > point ? page : point;
        most = page > most ? page : most;
    }
    return sizeof(struct tern_record) + most;
}

bool tern_record_is_page(const struct tern_kv_cache *c, const struct tern_record *h)
{
    uint32_t n = 0;
    if (h->kind != TERN_RECORD_PAGE || h->has >> TERN_KV_PARTS)
        return false;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        if (h->has >> i & 1 &&
            (n >= h->n_parts || !tern_kv_part_bytes(c, i) || h->part_bytes[n++] != tern_kv_part_bytes(c, i)))
            return false;
    return n == h->n_parts;
}

int tern_record_get_page(struct tern_kv_cache *c, const struct tern_record *h, struct tern_kv_slice *out,
                         tern_error *err)
{
    const uint8_t *bytes = (const uint8_t *)h + sizeof *h;
    if (!tern_record_is_page(c, h))
        return tern_err_set(err, TERN_EFORMAT, "a page does not have the parts of this KV plan");
    int rc = tern_kv_slice_new(c, h->has, out, err);
    for (int i = 0; i < TERN_KV_PARTS && rc == 0; i++)
        if (h->has >> i & 1) {
            tern_kv_part_write(c, out, i, bytes);
            bytes += tern_kv_part_bytes(c, i);
        }
    return rc;
}

int tern_record_get_point(struct tern_kv_cache *c, const struct tern_record *h, size_t n_vocab,
                          struct tern_kv_checkpoint **out, tern_error *err)
{
    *out = NULL;
    if (h->kind == TERN_RECORD_PAGE || h->n_parts != 1)
        return tern_err_set(err, TERN_EFORMAT, "a record is no end of a prompt");
    int rc = tern_kv_checkpoint_unpack(c, (const uint8_t *)h + sizeof *h, h->part_bytes[0], out, err);
    if (rc < 0)
        return rc;
    if ((uint32_t)(*out)->at == h->index * TERN_PAGE + h->n_tokens &&
        (*out)->n_logits == (h->kind == TERN_RECORD_END ? n_vocab : 0))
        return 0;
    tern_kv_checkpoint_drop(*out);
    *out = NULL;
    return tern_err_set(err, TERN_EFORMAT, "the end of a prompt is not where its record says");
}
