/* Checkpoints: PyTorch DCP (distributed checkpoint) folders with an additional manifest.
 *
 * A step folder `step-N/` contains `.metadata` (pickle), parts `__R_0.distcp` (concatenated torch.save archives), small
 * files of dtd (`dtd.job.yaml`, `dtd.vocab`, `dtd.hf.json`), and `dtd.manifest`, which has checksums of every byte of
 * all other files. No file is overwritten in place, all data is verified when it is read, and no pickle is ever
 * executed. docs/formats/checkpoint.md describes the format. Blocking file I/O, no sockets; a handle belongs to one
 * thread at a time. */
#ifndef DTD_COMMON_CKPT_CKPT_H
#define DTD_COMMON_CKPT_CKPT_H

#include "common/base/box.h"
#include "common/base/buf.h"
#include "common/base/dtype.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CKPT_EXTENT_BYTES (1 << 20) /* bytes per checksum in the manifest; part of the format */
#define CKPT_MANIFEST "dtd.manifest"
#define CKPT_JOB_FILE "dtd.job.yaml"
#define CKPT_VOCAB_FILE "dtd.vocab"
/* Of an imported model: config.json and other small files of its folder, for an export. */
#define CKPT_HF_FILE "dtd.hf.json"

/* ---- names, as in the state dict of torchtitan ---- */

enum ckpt_state { CKPT_PARAM, CKPT_EXP_AVG, CKPT_EXP_AVG_SQ, CKPT_STATE_COUNT };
/* "w" -> "w", "optimizer.state.w.exp_avg", "optimizer.state.w.exp_avg_sq". */
NODISCARD err_t ckpt_state_name(enum ckpt_state state, const char *param, char *ret, size_t size);

/* ---- scalars: BYTE_IO leaves ---- */

enum ckpt_scalar_kind { CKPT_INT, CKPT_FLOAT, CKPT_BOOL, CKPT_STR, CKPT_NONE, CKPT_FLOAT_PAIR, CKPT_OPAQUE };
struct ckpt_scalar {
    char *fqn;
    enum ckpt_scalar_kind kind;
    int64_t i;
    double f[2];
    char *s;
};

/* ---- writing a part: the data of one rank ---- */

/* One box of one tensor, contiguous at `data`. */
struct ckpt_piece {
    const char *fqn;
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_MAX_DIMS]; /* shape of the whole tensor */
    struct box box;
    const void *data;
};

struct ckpt_writer_id;
struct ckpt_part; /* the index of a written part, for the committer: entries, checksums; ckpt_part_free */

/* Writes and fsyncs `dir/__<rank>_0.distcp`. `scalars` become BYTE_IO leaves; only rank 0 has them, other ranks pass
 * n_scalars 0. After ERR_NOSPACE a short file is left in the .partial folder. */
NODISCARD err_t ckpt_part_write(const char *dir, int rank, const struct ckpt_piece *pieces, int n_pieces,
                                const struct ckpt_scalar *scalars, int n_scalars, struct ckpt_part **ret,
                                struct why *why);
void ckpt_part_free(struct ckpt_part *part);
/* The form in a marker file, for the committer on another node. Bounded, fuzzed. */
NODISCARD err_t ckpt_part_encode(const struct ckpt_part *part, struct buf *ret);
NODISCARD err_t ckpt_part_decode(const void *data, size_t len, struct ckpt_part **ret);

/* ---- committing ---- */

struct ckpt_commit {
    const char *root; /* checkpoint directory; the parts are in ckpt_partial_dir, or with `me` ckpt_partial_dir_of */
    int64_t step;
    uint64_t epoch;
    const char *job_yaml; /* the job's spec, stored in the step folder; NULL: none */
    const void *vocab;    /* the tokenizer's vocabulary, NULL: none */
    size_t vocab_bytes;
    const void *hf; /* content of CKPT_HF_FILE; NULL: none */
    size_t hf_bytes;
    double loss;                     /* validation loss, else training loss, for `ls` and retention; NAN: unknown */
    const struct ckpt_writer_id *me; /* identity that prepared the directory (shared.h); NULL: no check */
};

/* root/.step-N.e<epoch>.partial, for a writer that is no job. */
NODISCARD err_t ckpt_partial_dir(const char *root, int64_t step, uint64_t epoch, char *ret, size_t size);
NODISCARD err_t ckpt_step_dir(const char *root, int64_t step, char *ret, size_t size);
/* Checks that the parts' boxes are disjoint and cover every tensor, writes `.metadata`, the small files and the
 * manifest, fsyncs, renames the folder to step-N and fsyncs root. ERR_EXISTS: step-N exists already and is not
 * replaced; if it is valid, the step counts as committed. ERR_STALE: another process owns the directory now. */
NODISCARD err_t ckpt_commit(const struct ckpt_commit *c, struct ckpt_part *const *parts, int n_parts, struct why *why);

/* ---- reading ---- */

struct ckpt_chunk {
    struct box box;
    const char *file;
    int64_t offset, length; /* position of the blob in the file */
};
struct ckpt_tensor {
    char *fqn;
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_MAX_DIMS];
    struct ckpt_chunk *chunks;
    int n_chunks;
};

struct ckpt; /* an open step folder */

/* Opens a step folder that dtd or PyTorch wrote. With a manifest, its own hash, the set of files and their sizes are
 * checked at once, and every extent when it is read. Without a manifest (PyTorch), the archive's CRC-32 is checked when
 * a blob is read completely. Errors name file and extent. */
NODISCARD err_t ckpt_open(const char *dir, struct ckpt **ret, struct why *why);
void ckpt_close(struct ckpt *c);
/* Shares the reads of tensors with other readers of the process: what several of them need is read from the disk once.
 * `claims` (read_claims.h) outlives c. */
struct read_claims;
void ckpt_share_reads(struct ckpt *c, struct read_claims *claims);
/* Renames tensors and scalars in memory by rules "FROM=TO": a name that begins with FROM, also after
 * "optimizer.state.", begins with TO instead. A `*` in FROM stands for one component of a name (without a dot), and a
 * `*` in TO for the same; each has at most one. The first rule that fits counts. ERR_INVALID: two tensors get the same
 * name. */
NODISCARD err_t ckpt_rename(struct ckpt *c, char *const *rules, int n, struct why *why);
int ckpt_tensors(const struct ckpt *c, const struct ckpt_tensor **ret); /* sorted by fqn */
const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *fqn);
/* Decodes a scalar leaf. ERR_NOTFOUND. Strings are valid until ckpt_close. */
NODISCARD err_t ckpt_scalar(struct ckpt *c, const char *fqn, struct ckpt_scalar *ret, struct why *why);
/* Names of the scalar leaves, sorted; NULL beyond the last. */
const char *ckpt_scalar_name(const struct ckpt *c, int i);
/* Appends a verified small file (CKPT_JOB_FILE, CKPT_VOCAB_FILE, CKPT_HF_FILE) to ret. ERR_NOTFOUND. */
NODISCARD err_t ckpt_small_file(struct ckpt *c, const char *name, struct buf *ret, struct why *why);
bool ckpt_has_manifest(const struct ckpt *c);
int64_t
ckpt_step(const struct ckpt *c); /* from the manifest, else train_state.step, else the folder's name; -1: unknown */
uint64_t ckpt_epoch(const struct ckpt *c);
double ckpt_loss(const struct ckpt *c);

/* A box to read. It is written contiguously (row-major) at dst, as dtype; float32, float64, bfloat16 and float16 are
 * converted into each other. */
struct ckpt_want {
    const char *fqn;
    struct box box;
    enum dtype dtype;
    void *dst;
};
struct ckpt_read_stats {
    int64_t bytes_needed, bytes_read;
};
/* Reads many boxes at once: reads are sorted by file and offset and merged, and each extent is verified once. The
 * sentence names the missing tensor (ERR_NOTFOUND), the tensor of another shape (ERR_INVALID), or file and extent
 * (ERR_CORRUPT). */
NODISCARD err_t ckpt_read(struct ckpt *c, const struct ckpt_want *wants, int n, struct ckpt_read_stats *ret_stats,
                          struct why *why);

/* SHA-256, in hex, of all elements of a tensor, row-major, in the stored type. */
NODISCARD err_t ckpt_tensor_hash(struct ckpt *c, const char *fqn, char ret[65], struct why *why);

/* Reads and checks every byte. `progress(done, total, arg)` may be NULL. */
NODISCARD err_t ckpt_verify(const char *dir, void (*progress)(int64_t, int64_t, void *), void *arg, struct why *why);

/* ---- a checkpoint directory ---- */

struct ckpt_info {
    int64_t step;
    uint64_t epoch;
    int64_t bytes;
    double loss;
    int64_t committed_ms; /* wall clock, from the manifest; the folder's mtime without one */
    bool manifest;
};
/* Describes one step folder by its manifest and the sizes of its files. ERR_NOTFOUND, ERR_CORRUPT. */
NODISCARD err_t ckpt_info(const char *dir, struct ckpt_info *ret, struct why *why);
/* Lists valid step folders (with a valid manifest, or of PyTorch with .metadata), ascending by step. */
NODISCARD err_t ckpt_scan(const char *root, struct ckpt_info **ret, int *ret_n, struct why *why);
/* Removes uncommitted saves of epochs before `epoch`, those of every epoch whose incarnation is not `incarnation`
 * (ckpt_incarnation; 0: any), and folders that were renamed to .trash-*. */
NODISCARD err_t ckpt_collect(const char *root, uint64_t epoch, uint64_t incarnation, struct why *why);
/* Removes a folder that no reader opens (ckpt_partial_dir), if it exists. */
NODISCARD err_t ckpt_partial_remove(const char *dir, struct why *why);
/* Removes one step. It is renamed to .trash-step-N first, so no reader ever sees an incomplete step. */
NODISCARD err_t ckpt_remove(const char *root, int64_t step, struct why *why);
/* After a roll-back to `step`: renames newer steps of epochs before `epoch` to step-N.e<their epoch>. */
NODISCARD err_t ckpt_abandon_after(const char *root, int64_t step, uint64_t epoch, struct why *why);

#endif
