/* A config.json of a Hugging Face model. Of an accepted one all sizes are in range, and an export of its model, with
 * and without the keys of this one, writes a config.json that is read as the same model. */
#include "client/hf/hf.h"
#include "common/conf/schema.h"
#include "common/plan/models/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static void check_sizes(const struct job_model *m)
{
    check(m->dim > 0 && m->layers > 0 && m->heads > 0 && m->kv_heads > 0 && m->ffn > 0 && m->vocab > 0, "a size is 0");
    check(m->norm_eps > 0 && m->rope_theta > 0, "a number is not above 0");
    check(m->experts >= 0 && m->experts <= JOB_MAX_EXPERTS, "too many experts");
    check(!m->experts || (m->experts_per_token <= m->experts && m->experts_per_token <= JOB_MAX_CHOICES),
          "a token uses more experts than there are");
    check(m->moe_every >= 1 && m->dense_layers >= 0 && m->router_groups == 1, "a key of the experts is out of range");
}

/* Each key of the model as a job file prints it, except those of experts, which are compared below, and widths that a
 * dense model does not use. */
static void check_keys(const struct job_model *a, const struct job_model *b)
{
    struct job_spec x = {.model = *a}, y = {.model = *b};
    for (int i = 0; i < job_schema.n_rows; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        struct buf s = {0}, t = {0};
        if (strncmp(row->key, "model.", 6) != 0 || a->experts)
            continue;
        if (row->type == SCHEMA_FLOAT) { /* config.json may have the reciprocal, or its square */
            double u, v;
            memcpy(&u, (const char *)&x + row->offset, sizeof(u));
            memcpy(&v, (const char *)&y + row->offset, sizeof(v));
            check(fabs(u - v) <= 1e-12 * fabs(u), row->key);
            continue;
        }
        check(!schema_value_print(row, &x, &s) && !schema_value_print(row, &y, &t), "a key cannot be printed");
        if (s.len != t.len || memcmp(s.data, t.data, s.len) != 0) {
            fprintf(stderr, "%s: %.*s and %.*s\n", row->key, (int)s.len, (const char *)s.data, (int)t.len,
                    (const char *)t.data);
            check(false, "another model");
        }
        buf_fini(&s);
        buf_fini(&t);
    }
}

static void check_same(const struct job_model *a, const struct job_model *b)
{
    check_keys(a, b);
    check(a->arch == b->arch && a->dim == b->dim && a->layers == b->layers && a->heads == b->heads, "another size");
    check(a->kv_heads == b->kv_heads && a->vocab == b->vocab && a->tied == b->tied, "another head or vocabulary");
    check(a->head_dim == b->head_dim && a->qkv_bias == b->qkv_bias && a->qk_norm == b->qk_norm, "another attention");
    for (int64_t l = 0; l < a->layers; l++)
        check(job_layer_has_window(a, l) == job_layer_has_window(b, l) && a->window == b->window, "another window");
    check(a->norm_eps == b->norm_eps && a->rope_theta == b->rope_theta, "another number");
    check(a->experts == b->experts && a->shared_experts == b->shared_experts, "other experts");
    if (!a->experts) {
        check(a->ffn == b->ffn, "another feed-forward");
        return;
    }
    check(a->experts_per_token == b->experts_per_token && a->expert_ffn == b->expert_ffn, "another number of experts");
    check(a->router == b->router && a->router_norm == b->router_norm, "another router");
    check(a->shared_gate == b->shared_gate, "another gate");
    for (int64_t l = 0; l < a->layers; l++)
        check((l >= a->dense_layers && (l + 1) % a->moe_every == 0) ==
                  (l >= b->dense_layers && (l + 1) % b->moe_every == 0),
              "experts in other layers");
}

static void check_round_trip(const struct job_model *m, const json_t *kept)
{
    struct graph g;
    struct buf text = {0};
    struct job_model back;
    int64_t positions;
    struct why why = {0};
    if (m->layers > 6 || graph_build(m, 8, &g, NULL))
        return;
    check(!hf_config_print(m, &g, 8, DT_F32, kept, &text), "a model that was read cannot be written");
    if (hf_config_read((const char *)text.data, text.len, &back, &positions, &why))
        check(false, why.text);
    check_same(m, &back);
    job_model_fini(&back);
    buf_fini(&text);
    graph_fini(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct job_model m;
    int64_t positions;
    struct why why = {0};
    if (hf_config_read((const char *)data, size, &m, &positions, &why)) {
        check(why.text[0] && memchr(why.text, 0, sizeof(why.text)), "refused without a sentence");
        return 0;
    }
    json_t *kept = json_loadb((const char *)data, size, 0, NULL);
    check(positions > 0 && kept, "no positions, or no JSON");
    check_sizes(&m);
    check(hf_config_aux(kept, &m) >= 0, "a coefficient below 0");
    check_round_trip(&m, NULL);
    check_round_trip(&m, kept);
    json_decref(kept);
    job_model_fini(&m);
    return 0;
}
