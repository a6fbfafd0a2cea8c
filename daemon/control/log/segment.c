/* A segment is {u64 format, batches, zeros}. A batch is {u32 CRC of the header, u32 CRC of the data, header, data}; its
 * header is {u64 n, n times {u64 term, u8 type, 3 zero bytes, u32 bytes}}; its data are the n entries. All numbers are
 * little-endian, and all lengths are multiples of 8. */
#include "daemon/control/log/segment.h"

#include "daemon/control/log/sum.h"

#include <endian.h>
#include <string.h>

#define FORMAT 1
#define PREAMBLE_BYTES 8 /* the two CRCs */
#define ENTRY_HEADER_BYTES 16

static uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

static uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

/* Length in bytes of the batch that starts here, and the number of its entries. 0: no whole batch starts here. */
static size_t measure_batch(const uint8_t *at, size_t len, uint64_t *ret_entries)
{
    if (len < PREAMBLE_BYTES + sizeof(uint64_t))
        return 0;
    const uint8_t *header = at + PREAMBLE_BYTES;
    uint64_t n = load_u64(header);
    if (!n || n > (len - PREAMBLE_BYTES - sizeof(uint64_t)) / ENTRY_HEADER_BYTES)
        return 0;
    size_t header_bytes = sizeof(uint64_t) + n * ENTRY_HEADER_BYTES, data_bytes = 0;
    if (log_crc(0, header, header_bytes) != load_u32(at))
        return 0;
    for (uint64_t i = 0; i < n; i++)
        data_bytes += load_u32(header + sizeof(uint64_t) + i * ENTRY_HEADER_BYTES + 12);
    if (data_bytes > len - PREAMBLE_BYTES - header_bytes ||
        log_crc(0, header + header_bytes, data_bytes) != load_u32(at + 4))
        return 0;
    *ret_entries = n;
    return PREAMBLE_BYTES + header_bytes + data_bytes;
}

static bool is_zero(const uint8_t *at, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (at[i])
            return false;
    return true;
}

/* In damaged bytes any number may pass for a number of entries, and each needs a CRC over as many headers. So the
 * search ends after SEARCH_PASSES times the bytes that are there. */
#define SEARCH_PASSES 16
static bool has_batch(const uint8_t *at, size_t len)
{
    uint64_t n;
    size_t work = 0;
    for (size_t i = 0; i + PREAMBLE_BYTES + sizeof(n) <= len && work < SEARCH_PASSES * len; i += sizeof(uint64_t)) {
        n = load_u64(at + i + PREAMBLE_BYTES);
        if (!n || n > (len - i) / ENTRY_HEADER_BYTES)
            continue;
        if (measure_batch(at + i, len - i, &n))
            return true;
        work += n * ENTRY_HEADER_BYTES;
    }
    return false;
}

void log_segment_examine(const void *bytes, size_t len, struct log_segment *ret)
{
    const uint8_t *at = bytes;
    uint64_t n;
    *ret = (struct log_segment){0};
    if (is_zero(at, len))
        return; /* prepared for later use */
    if (len < sizeof(uint64_t) || load_u64(at) != FORMAT) {
        ret->is_unreadable = true;
        return;
    }
    ret->used_bytes = sizeof(uint64_t);
    for (size_t batch; (batch = measure_batch(at + ret->used_bytes, len - ret->used_bytes, &n));) {
        ret->used_bytes += batch;
        ret->entries += n;
    }
    ret->has_rest = !is_zero(at + ret->used_bytes, len - ret->used_bytes);
    ret->has_late_batch = ret->has_rest && has_batch(at + ret->used_bytes, len - ret->used_bytes);
}
