#include "common/data/hdf5_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COLUMNS 1000 /* links of a group that are looked at */
#define MAX_PART 256     /* bytes of a name between slashes */

/* ---- errors ---- */

static herr_t keep_innermost(unsigned n, const H5E_error2_t *e, void *arg)
{
    if (n == 0 && e->desc)
        snprintf(arg, 256, "%s", e->desc);
    return 0;
}

err_t hdf5_fail(const char *name, const char *what, const struct why *io, struct why *why)
{
    char text[256] = "no reason given";
    if (io && io->text[0])
        return why_set(why, ERR_IO, "%s", io->text);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, text);
    table_clean_name(text);
    return why_set(why, ERR_CORRUPT, "%s: %s: libhdf5 reports: %s", name, what, text);
}

/* ---- types ---- */

static enum hdf5_kind vlen_kind(hid_t type)
{
    hid_t of = H5Tget_super(type);
    enum hdf5_kind kind = HDF5_OTHER;
    if (of >= 0 && H5Tget_class(of) == H5T_INTEGER)
        kind = H5Tget_size(of) == 1 && H5Tget_sign(of) == H5T_SGN_NONE ? HDF5_BYTE_LISTS : HDF5_INT_LISTS;
    if (of >= 0)
        H5Tclose(of);
    return kind;
}

static enum hdf5_kind kind_of(hid_t type, int dimensions)
{
    H5T_class_t class = H5Tget_class(type);
    if (dimensions == 2)
        return class == H5T_INTEGER ? HDF5_GRID : HDF5_OTHER;
    if (dimensions != 1)
        return HDF5_OTHER;
    if (class == H5T_STRING)
        return H5Tis_variable_str(type) > 0 ? HDF5_STRINGS : HDF5_OTHER;
    if (class == H5T_INTEGER)
        return HDF5_NUMBERS;
    return class == H5T_VLEN ? vlen_kind(type) : HDF5_OTHER;
}

static const char *type_words(hid_t type, int dimensions)
{
    static const struct {
        H5T_class_t class;
        const char *words[3]; /* by dimensions: none, 1, more */
    } table[] = {
        {H5T_INTEGER,
         {"one integer", "1-D integers (2-D has a row for each document)", "integers in more than 2 dimensions"}},
        {H5T_FLOAT, {"one float", "1-D floats", "floats in several dimensions"}},
        {H5T_STRING, {"one string", "strings of fixed length", "strings in several dimensions"}},
        {H5T_VLEN, {"one list", "lists of something else than integers", "lists in several dimensions"}},
        {H5T_COMPOUND, {"a compound", "compounds", "compounds"}},
        {H5T_ENUM, {"an enumeration", "enumerations", "enumerations"}},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].class == H5Tget_class(type))
            return table[i].words[dimensions < 0 ? 0 : dimensions > 2 ? 2 : dimensions];
    return "neither strings nor integers";
}

/* What a link leads to. */
static enum hdf5_kind look(hid_t object, const char **ret_type)
{
    *ret_type = "a group; name a dataset in it, as in train/text";
    if (H5Iget_type(object) == H5I_GROUP)
        return HDF5_OTHER;
    *ret_type = "no dataset";
    if (H5Iget_type(object) != H5I_DATASET)
        return HDF5_OTHER;
    hid_t type = H5Dget_type(object), space = H5Dget_space(object);
    int dimensions = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    enum hdf5_kind kind = type >= 0 ? kind_of(type, dimensions) : HDF5_OTHER;
    *ret_type = type >= 0 ? type_words(type, dimensions) : "of a damaged type";
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return kind;
}

/* ---- groups ---- */

static bool is_hard(hid_t group, const char *name)
{
    H5L_info_t info;
    return H5Lget_info(group, name, &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_HARD;
}

static enum table_kind column_kind(enum hdf5_kind kind)
{
    static const enum table_kind kinds[] = {
        [HDF5_OTHER] = TABLE_OTHER,    [HDF5_STRINGS] = TABLE_BYTES, [HDF5_BYTE_LISTS] = TABLE_BYTES,
        [HDF5_INT_LISTS] = TABLE_INTS, [HDF5_GRID] = TABLE_INTS,     [HDF5_NUMBERS] = TABLE_INT};
    return kinds[kind];
}

static herr_t add_column(hid_t group, const char *name, const H5L_info_t *info, void *arg)
{
    struct hdf5_group *g = arg;
    const char *type = "a link to another file or name";
    enum hdf5_kind kind = HDF5_OTHER;
    if (g->n == MAX_COLUMNS)
        return 1;
    bool hard = is_hard(group, name);
    hid_t object = hard ? H5Oopen(group, name, H5P_DEFAULT) : -1;
    if (hard && object < 0)
        type = "unknown to this version of libhdf5 (write the file with libver v110), or damaged";
    if (object >= 0) {
        kind = look(object, &type);
        H5Oclose(object);
    }
    char *copy = strdup(name);
    if (!copy)
        return -1;
    table_clean_name(copy);
    g->kinds[g->n] = kind;
    g->columns[g->n++] = (struct table_column){.name = copy, .kind = column_kind(kind), .type = type};
    return 0;
}

/* Opens the groups of a path, one after the other. */
static err_t open_path(hid_t file, const char *path, const char *name, struct hdf5_group *g, struct why *why)
{
    g->id = H5Gopen2(file, "/", H5P_DEFAULT);
    while (g->id >= 0 && *path) {
        char part[MAX_PART];
        size_t len = strcspn(path, "/");
        snprintf(part, sizeof(part), "%.*s", (int)len, path);
        if (len >= sizeof(part) || (len && !is_hard(g->id, part)))
            return why_set(why, ERR_INVALID,
                           "%s: there is no group %s, or it is a link; set data.field to GROUP/DATASET", name, path);
        hid_t next = len ? H5Gopen2(g->id, part, H5P_DEFAULT) : g->id;
        if (len)
            H5Gclose(g->id);
        g->id = next;
        path += len + (path[len] == '/');
    }
    return g->id < 0 ? hdf5_fail(name, "its group cannot be opened", NULL, why) : OK;
}

err_t hdf5_group_open(hid_t file, const char *path, const char *name, struct hdf5_group *ret, struct why *why)
{
    struct hdf5_group g = {.id = -1};
    g.columns = calloc(MAX_COLUMNS, sizeof(*g.columns));
    g.kinds = calloc(MAX_COLUMNS, sizeof(*g.kinds));
    err_t err = g.columns && g.kinds ? open_path(file, path, name, &g, why)
                                     : why_set(why, ERR_NOMEM, "%s: %s", name, err_text(ERR_NOMEM));
    if (!err && H5Literate(g.id, H5_INDEX_NAME, H5_ITER_INC, NULL, add_column, &g) < 0)
        err = hdf5_fail(name, "its datasets cannot be listed", NULL, why);
    if (err)
        hdf5_group_fini(&g);
    else
        *ret = g;
    return err;
}

void hdf5_group_fini(struct hdf5_group *g)
{
    for (int i = 0; i < g->n; i++)
        free((char *)(uintptr_t)g->columns[i].name);
    free(g->columns);
    free(g->kinds);
    *g = (struct hdf5_group){.id = -1}; /* the group is closed with the file */
}
