#include "common/rpc/node_load_codec.h"

#include "common/rpc/field_codec.h"

err_t node_load_encode(const struct node_load *load, struct node_load_message *ret)
{
    dtd__node_load__init(&ret->m);
    ret->m.gpu = ret->refs;
    err_t err = fields_encode(&node_load_fields, load, FIELDS_FOR_DAEMONS, &ret->m.base);
    for (int i = 0; i < load->n_gpu && !err; i++) {
        dtd__node_gpu_load__init(&ret->gpu[i]);
        ret->refs[i] = &ret->gpu[i];
        ret->m.n_gpu++;
        err = fields_encode(&gpu_load_fields, &load->gpu[i], FIELDS_FOR_DAEMONS, &ret->gpu[i].base);
    }
    return err;
}

void node_load_encoded_fini(struct node_load_message *m)
{
    fields_encoded_fini(&m->m.base);
    for (size_t i = 0; i < m->m.n_gpu; i++)
        fields_encoded_fini(&m->gpu[i].base);
    m->m.n_gpu = 0;
}

void node_load_decode(const Dtd__NodeLoad *m, struct node_load *ret)
{
    *ret = node_load_none;
    fields_decode(&node_load_fields, &m->base, ret);
    for (size_t i = 0; i < m->n_gpu && ret->n_gpu < NODE_LOAD_GPUS; i++)
        fields_decode(&gpu_load_fields, &m->gpu[i]->base, &ret->gpu[ret->n_gpu++]);
}
