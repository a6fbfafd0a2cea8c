/* Files are written under a temporary name and renamed when they are complete. config.json is written last, so a folder
 * that has one holds a complete model. A tensor is copied in pieces of whole heads of rows. */
#include "client/hf/hf.h"

#include "common/base/file.h"
#include "common/ckpt/safetensors.h"
#include "common/data/data.h"
#include "common/plan/models/build.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Large enough for fast reads and writes; two such buffers are small beside any model. */
#define PIECE ((int64_t)64 << 20)

struct shard {
    int first, end; /* entries first .. end - 1 of the map */
    char name[64];
};

struct exporting {
    const struct hf_export *x;
    struct hf_done *done;
    struct why *why;
    struct ckpt *ckpt;
    struct job_spec job;
    struct graph graph;
    struct hf_map map;
    struct shard *shards;
    int n_shards;
    enum dtype dtype;
    json_t *kept;   /* CKPT_HF_FILE: file name -> text; NULL: the model was not imported */
    json_t *config; /* its config.json */
};

static err_t no_memory(struct exporting *e)
{
    return why_set(e->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

/* Of the tensor there; entries that are one tensor follow each other, and the first one counts for all. */
static int64_t file_rows(const struct hf_tensor *h)
{
    return h->unit ? h->file_rows : h->rows;
}

/* The number of entries from i on that are one tensor in the file. */
static int same_tensor(const struct exporting *e, int i)
{
    int n = 1;
    while (e->map.list[i].unit && i + n < e->map.n && strcmp(e->map.list[i].name, e->map.list[i + n].name) == 0)
        n++;
    return n;
}

static int64_t tensor_bytes(const struct exporting *e, int i)
{
    return file_rows(&e->map.list[i]) * e->map.list[i].cols * (int64_t)dtype_bytes(e->dtype);
}

/* ---- the folder ---- */

static err_t dir_make(struct exporting *e)
{
    struct dirent *entry;
    const char *dir = e->x->dir;
    err_t err = file_make_dirs(dir, 0755);
    if (err)
        return why_set(e->why, err, "%s: %s", dir, err_text(err));
    DIR *d = opendir(dir);
    if (!d)
        return why_set(e->why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    while (!err && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            err = why_set(e->why, ERR_EXISTS, "%s is not empty (it has %s). Choose another folder, or remove it", dir,
                          entry->d_name);
    closedir(d);
    return err;
}

static err_t path_of(struct exporting *e, const char *name, const char *suffix, char ret[PATH_MAX])
{
    if ((size_t)snprintf(ret, PATH_MAX, "%s/%s%s", e->x->dir, name, suffix) >= PATH_MAX)
        return why_set(e->why, ERR_LIMIT, "%s: the path is too long", e->x->dir);
    return OK;
}

static err_t small_write(struct exporting *e, const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    err_t err = path_of(e, name, "", path);
    if (!err && (err = file_replace(path, data, len, 0644)))
        why_set(e->why, err, "%s: %s", path, err_text(err));
    if (!err) {
        e->done->files++;
        e->done->bytes += (int64_t)len;
    }
    return err;
}

/* ---- one file of tensors ---- */

/* The box of rows first .. first + n - 1 in the checkpoint. */
static struct box rows_box(const struct hf_tensor *h, int64_t first, int64_t n)
{
    if (h->expert >= 0)
        return (struct box){.ndim = 3, .offset = {h->expert, first, 0}, .size = {1, n, h->cols}};
    return (struct box){.ndim = h->tensor->ndim, .offset = {first, 0}, .size = {n, h->cols}};
}

/* Reads rows first .. first + n - 1 into `ret`, in Hugging Face's order. `room`: a buffer of the same size. */
static err_t rows_read(struct exporting *e, const struct hf_tensor *h, int64_t first, int64_t n, void *room, void *ret)
{
    struct ckpt_read_stats stats;
    struct ckpt_want want = {
        .fqn = h->tensor->name, .box = rows_box(h, first, n), .dtype = e->dtype, .dst = h->head_dim ? room : ret};
    err_t err = ckpt_read(e->ckpt, &want, 1, &stats, e->why);
    if (!err && h->head_dim)
        hf_rows(h->head_dim, h->turned, n, (size_t)h->cols * dtype_bytes(e->dtype), true, room, ret);
    return err;
}

static err_t tensor_write(struct exporting *e, int fd, const struct hf_tensor *h)
{
    int64_t rows = h->rows, row_bytes = h->cols * (int64_t)dtype_bytes(e->dtype);
    int64_t unit = h->head_dim ? h->head_dim : 1, step = PIECE / (row_bytes > 0 ? row_bytes : 1) / unit * unit;
    step = step < unit ? unit : step > rows ? rows : step;
    uint8_t *room = malloc((size_t)(2 * step * row_bytes));
    err_t err = room ? OK : no_memory(e);
    for (int64_t at = 0; !err && at < rows; at += step) {
        int64_t n = rows - at < step ? rows - at : step;
        err = rows_read(e, h, at, n, room + step * row_bytes, room);
        if (!err && (err = file_write_all(fd, room, (size_t)(n * row_bytes))))
            why_set(e->why, err, "%s: %s", e->x->dir, err_text(err));
    }
    free(room);
    return err;
}

/* Writes a tensor of which entries first .. first + n - 1 are parts. They are put together in memory. */
static err_t joined_write(struct exporting *e, int fd, int first, int n)
{
    const struct hf_tensor *h = &e->map.list[first];
    const size_t row = (size_t)h->cols * dtype_bytes(e->dtype), bytes = (size_t)h->file_rows * row;
    uint8_t *all = malloc(bytes), *part = malloc(2 * bytes);
    err_t err = all && part ? OK : no_memory(e);
    for (int i = 0; !err && i < n; i++, h++) {
        err = rows_read(e, h, 0, h->rows, part + bytes, part);
        for (int64_t r = 0; !err && r < h->rows; r += h->unit)
            memcpy(all + (size_t)(r / h->unit * h->stride + h->place) * row, part + (size_t)r * row,
                   (size_t)h->unit * row);
    }
    if (!err && (err = file_write_all(fd, all, bytes)))
        why_set(e->why, err, "%s: %s", e->x->dir, err_text(err));
    free(all);
    free(part);
    return err;
}

static err_t header_write(struct exporting *e, int fd, const struct shard *s)
{
    struct buf header = {0};
    uint64_t data;
    struct safetensor *list = calloc((size_t)(s->end - s->first) + 1, sizeof(*list));
    err_t err = list ? OK : ERR_NOMEM;
    int n = 0;
    for (int i = s->first; !err && i < s->end; i += same_tensor(e, i)) {
        const struct hf_tensor *h = &e->map.list[i];
        list[n++] = (struct safetensor){.name = (char *)(uintptr_t)h->name,
                                        .dtype = e->dtype,
                                        .ndim = h->tensor->ndim,
                                        .shape = {file_rows(h), h->cols}};
    }
    err = err ? err : safetensors_header(list, n, &header, &data);
    err = err ? err : file_write_all(fd, header.data, header.len);
    if (err)
        why_set(e->why, err, "%s: %s", e->x->dir, err_text(err));
    else
        e->done->bytes += (int64_t)(header.len + data);
    buf_fini(&header);
    free(list);
    return err;
}

static err_t shard_write(struct exporting *e, const struct shard *s)
{
    char path[PATH_MAX], temp[PATH_MAX];
    err_t err = path_of(e, s->name, "", path);
    if (!err)
        err = path_of(e, s->name, ".partial", temp);
    if (err)
        return err;
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return why_set(e->why, err_from_errno(errno), "%s: %s", temp, strerror(errno));
    err = header_write(e, fd, s);
    for (int i = s->first, n; !err && i < s->end; i += n) {
        n = same_tensor(e, i);
        err = e->map.list[i].unit ? joined_write(e, fd, i, n) : tensor_write(e, fd, &e->map.list[i]);
    }
    if (!err && (fsync(fd) || rename(temp, path)))
        err = why_set(e->why, err_from_errno(errno), "%s: %s", temp, strerror(errno));
    close(fd);
    if (err)
        unlink(temp);
    else
        e->done->files++;
    return err;
}

/* ---- the whole model ---- */

/* A tensor that would make the current file too large begins a new file. */
static err_t shards_plan(struct exporting *e)
{
    int64_t bytes = 0;
    e->shards = calloc((size_t)e->map.n + 1, sizeof(*e->shards));
    if (!e->shards)
        return no_memory(e);
    for (int i = 0, n; i < e->map.n; i += n) {
        int64_t size = tensor_bytes(e, i);
        n = same_tensor(e, i);
        if (!i || bytes + size > e->x->shard_bytes) {
            e->shards[e->n_shards++].first = i;
            bytes = 0;
        }
        e->shards[e->n_shards - 1].end = i + n;
        bytes += size;
        e->done->tensors++;
        e->done->params += file_rows(&e->map.list[i]) * e->map.list[i].cols;
    }
    for (int i = 0; i < e->n_shards; i++)
        if (e->n_shards == 1)
            snprintf(e->shards[i].name, sizeof(e->shards[i].name), HF_MODEL);
        else
            snprintf(e->shards[i].name, sizeof(e->shards[i].name), "model-%05d-of-%05d.safetensors", i + 1,
                     e->n_shards);
    return OK;
}

static err_t index_write(struct exporting *e)
{
    json_t *map = json_object();
    int64_t bytes = 0;
    for (int s = 0; map && s < e->n_shards; s++)
        for (int i = e->shards[s].first; i < e->shards[s].end; i += same_tensor(e, i)) {
            bytes += tensor_bytes(e, i);
            json_object_set_new(map, e->map.list[i].name, json_string(e->shards[s].name));
        }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    err_t err = text ? small_write(e, HF_INDEX, text, strlen(text)) : no_memory(e);
    free(text);
    json_decref(root);
    return err;
}

/* A pair is written as it was, and as a tokenizer.json: transformers reads a pair of gpt2's only. */
static err_t pair_write(struct exporting *e, const struct buf *vocab, size_t at, const size_t n[2])
{
    struct buf json = {0};
    err_t err = tokenizer_pair_json(vocab->data, vocab->len, NULL, 0, &json, e->why);
    err = err ? err : small_write(e, "vocab.json", vocab->data + at, n[0]);
    err = err ? err : small_write(e, "merges.txt", vocab->data + at + n[0], n[1]);
    err = err ? err : small_write(e, "tokenizer.json", json.data, json.len);
    buf_fini(&json);
    return err;
}

static err_t tokenizer_write(struct exporting *e)
{
    static const char config[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
    struct buf vocab = {0};
    size_t n[2], at;
    if (e->job.data.tokenizer != TOKENIZER_BPE)
        return OK;
    err_t err = ckpt_small_file(e->ckpt, CKPT_VOCAB_FILE, &vocab, e->why);
    if (!err && tokenizer_bpe_parts(vocab.data, vocab.len, &at, n))
        err = pair_write(e, &vocab, at, n);
    else if (!err)
        err = small_write(e, tokenizer_file_name(vocab.data, vocab.len), vocab.data, vocab.len);
    if (!err && !json_object_get(e->kept, "tokenizer_config.json"))
        err = small_write(e, "tokenizer_config.json", config, strlen(config));
    buf_fini(&vocab);
    return err;
}

/* The files that the import kept, but config.json, which depends on the checkpoint. */
static err_t kept_write(struct exporting *e)
{
    err_t err = OK;
    for (const char *const *name = hf_small_files + 1; !err && *name; name++) {
        const json_t *text = json_object_get(e->kept, *name);
        if (text)
            err = small_write(e, *name, json_string_value(text), json_string_length(text));
    }
    return err;
}

static err_t config_write(struct exporting *e)
{
    struct buf text = {0};
    err_t err = hf_config_print(&e->job.model, &e->graph, e->job.train.seq, e->dtype, e->config, &text);
    err = err ? no_memory(e) : small_write(e, HF_CONFIG, text.data, text.len);
    buf_fini(&text);
    return err;
}

/* Reads the files that an import kept, if the checkpoint descends from one. */
static err_t kept_read(struct exporting *e)
{
    struct buf text = {0};
    json_error_t error;
    err_t err = ckpt_small_file(e->ckpt, CKPT_HF_FILE, &text, e->why);
    if (err == ERR_NOTFOUND)
        return OK;
    if (!err && !(e->kept = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, &error)))
        err = why_set(e->why, ERR_CORRUPT, "%s/%s: %s", e->x->step_dir, CKPT_HF_FILE, error.text);
    const json_t *config = json_object_get(e->kept, HF_CONFIG);
    if (config)
        e->config = json_loadb(json_string_value(config), json_string_length(config), 0, &error);
    buf_fini(&text);
    return err;
}

static void dtype_choose(struct exporting *e)
{
    e->dtype = e->x->dtype != DT_NONE ? e->x->dtype : hf_config_dtype(e->config);
    e->dtype = e->dtype != DT_NONE ? e->dtype : DT_F32;
}

static err_t source_open(struct exporting *e)
{
    struct buf yaml = {0};
    err_t err = ckpt_open(e->x->step_dir, &e->ckpt, e->why);
    if (err)
        return err;
    err = ckpt_small_file(e->ckpt, CKPT_JOB_FILE, &yaml, e->why);
    if (err == ERR_NOTFOUND)
        why_set(e->why, err, "%s has no %s, which describes the model: only checkpoints written by dtd can be exported",
                e->x->step_dir, CKPT_JOB_FILE);
    if (!err)
        err = job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &e->job, e->why);
    buf_fini(&yaml);
    if (!err)
        err = graph_build(&e->job.model, e->job.train.seq, &e->graph, e->why);
    return err;
}

static err_t map_make(struct exporting *e)
{
    const char *type = json_string_value(json_object_get(e->config, "model_type"));
    return hf_map(&e->graph, &e->job.model, type, &e->map, e->why);
}

err_t hf_export(const struct hf_export *x, struct hf_done *ret, struct why *why)
{
    struct hf_done done = {0};
    struct exporting e = {.x = x, .done = &done, .why = why};
    snprintf(done.path, sizeof(done.path), "%s", x->dir);
    err_t err = source_open(&e);
    err = err ? err : kept_read(&e);
    err = err ? err : map_make(&e);
    dtype_choose(&e);
    done.dtype = e.dtype;
    err = err ? err : dir_make(&e);
    err = err ? err : shards_plan(&e);
    for (int i = 0; !err && i < e.n_shards; i++)
        err = shard_write(&e, &e.shards[i]);
    if (!err && e.n_shards > 1)
        err = index_write(&e);
    err = err ? err : tokenizer_write(&e);
    err = err ? err : kept_write(&e);
    err = err ? err : config_write(&e);
    json_decref(e.kept);
    json_decref(e.config);
    free(e.shards);
    hf_map_fini(&e.map);
    graph_fini(&e.graph);
    job_fini(&e.job);
    ckpt_close(e.ckpt);
    if (!err)
        *ret = done;
    return err;
}
