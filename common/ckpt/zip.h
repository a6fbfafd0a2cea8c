/* The zip archives of torch.save, as far as checkpoints need them: four uncompressed records under one root folder.
 *
 * dtd writes data.pkl, byteorder, version, and the payload data/0 last. So everything before the payload is known
 * without the tensor's data, and only data/0 can need ZIP64. Sizes and CRCs are in the local headers too, so archives
 * of dtd can be read from front to back. Archives of torch have them only in the central directory at the end. Offsets
 * are relative to the start of the archive, whose length is known. No state; any thread. */
#ifndef DTD_COMMON_CKPT_ZIP_H
#define DTD_COMMON_CKPT_ZIP_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define ZIP_PAYLOAD_ALIGN 64 /* as torch aligns payloads */

/* ---- writing ---- */

struct zip_record {
    const char *name; /* below the root */
    const void *data; /* unused for the last record: the caller writes its data between head and tail */
    uint64_t size;
    uint32_t crc; /* CRC-32 of data */
};

/* Appends the bytes before the last record's payload to `head`, and those after it to `tail`. */
NODISCARD err_t zip_write(const struct zip_record *records, int n, struct buf *head, struct buf *tail);

/* ---- reading ---- */

struct zip_source {
    err_t (*read)(void *arg, uint64_t offset, void *dst, size_t len, struct why *why);
    void *arg;
    uint64_t length; /* of the archive */
};

enum zip_name { ZIP_DATA_PKL, ZIP_BYTEORDER, ZIP_VERSION, ZIP_DATA_0, ZIP_NAMES };

struct zip_entry {
    bool there;
    uint32_t crc; /* 0: the writer did not compute it */
    uint64_t header, payload, size;
};

struct zip_index {
    struct zip_entry entry[ZIP_NAMES];
};

/* Reads the central directory. ERR_CORRUPT, ERR_UNSUPPORTED (compressed, several disks). */
NODISCARD err_t zip_index_read(const struct zip_source *src, struct zip_index *ret, struct why *why);
/* Scans the local headers up to data/0 or the directory. ERR_AGAIN if they do not contain the sizes. */
NODISCARD err_t zip_index_scan(const struct zip_source *src, struct zip_index *ret, struct why *why);
/* Reads a small record completely and checks its CRC unless that is 0. */
NODISCARD err_t zip_record_read(const struct zip_source *src, const struct zip_entry *e, size_t max_bytes,
                                struct buf *ret, struct why *why);

#endif
