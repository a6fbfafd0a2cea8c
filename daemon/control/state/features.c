/* See features.h. */
#include "daemon/control/state/features.h"

uint32_t features_oldest(void)
{
    return FEATURES_OLDEST;
}

uint32_t features_newest(void)
{
    return FEATURES_NEWEST;
}

uint32_t feature_of_record(const struct record *r)
{
    /* Kinds without a row are older than the cluster version. */
    static const struct {
        enum record_kind kind;
        uint32_t version;
    } table[] = {
        {RECORD_CLUSTER_VERSION, 2},
        {RECORD_LINEAGE, 2},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].kind == r->kind)
            return r->kind == RECORD_CLUSTER_VERSION ? r->cluster_version.version : table[i].version;
    return 1;
}
