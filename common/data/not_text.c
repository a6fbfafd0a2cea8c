/* Signatures are those of file(1)'s database and the formats' own documents. Text has no NUL bytes, but a log may have
 * a few; token ids of 16 or 32 bits and UTF-16 have one in every second to tenth byte. */
#include "common/data/not_text.h"

#include <stdbool.h>
#include <string.h>

/* UTF-16 of European text has a NUL in every second byte, and 16-bit ids of a vocabulary of 50,257 in about every
 * tenth. Of 1 MiB of web text, far less than one in a thousand is. */
#define NUL_SHARE 100
#define NUL_LEAST 16 /* a short text with a few NULs is no proof */

struct signature {
    size_t offset, len;
    const char *bytes, *text;
};

#define SIGN(bytes, text)                 \
    {                                     \
        0, sizeof(bytes) - 1, bytes, text \
    }

static const struct signature signatures[] = {
    SIGN("\x1f\x8b", "it is compressed by gzip; decompress it with gunzip"),
    SIGN("\x28\xb5\x2f\xfd", "it is compressed by zstd; decompress it with zstd -d"),
    SIGN("\xfd\x37zXZ\0", "it is compressed by xz; decompress it with xz -d"),
    SIGN("BZh", "it is compressed by bzip2; decompress it with bunzip2"),
    SIGN("\x04\x22\x4d\x18", "it is compressed by lz4; decompress it with lz4 -d"),
    SIGN("PK\x03\x04", "it is a zip archive; unpack it with unzip"),
    SIGN("7z\xbc\xaf\x27\x1c", "it is a 7z archive; unpack it"),
    {257, 5, "ustar", "it is a tar archive; unpack it with tar -xf"},
    SIGN("PAR1", "it is a Parquet table; write its column of text into a text file"),
    SIGN("ARROW1", "it is an Arrow file; write its column of text into a text file"),
    SIGN("\xff\xff\xff\xff", "it is an Arrow stream or an array of numbers; write its text into a text file"),
    SIGN("\x89HDF", "it is an HDF5 file; write its text into a text file"),
    SIGN("\x93NUMPY", "it is a NumPy array; data.format auto takes token ids from one"),
    SIGN("SQLite format 3", "it is an SQLite database; write its text into a text file"),
    SIGN("%PDF-", "it is a PDF; convert it with pdftotext"),
    SIGN("\x7f"
         "ELF",
         "it is a program"),
    SIGN("\x89PNG", "it is a picture"),
    SIGN("\xff\xd8\xff", "it is a picture"),
    SIGN("\xff\xfe\0\0", "it is UTF-32; convert it with iconv -f UTF-32 -t UTF-8"),
    SIGN("\xff\xfe", "it is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    SIGN("\xfe\xff", "it is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    SIGN("\0\0\xfe\xff", "it is UTF-32; convert it with iconv -f UTF-32 -t UTF-8"),
    SIGN("\x88\xd8\x34\x01", "it has token ids in the format of llm.c; data.format auto takes them"),
};

const char *not_text(const uint8_t *head, size_t n, size_t nuls, size_t read)
{
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
        const struct signature *s = &signatures[i];
        if (s->offset + s->len <= n && memcmp(head + s->offset, s->bytes, s->len) == 0)
            return s->text;
    }
    return nuls >= NUL_LEAST && nuls >= read / NUL_SHARE
               ? "it has too many NUL bytes for a text: it may be token ids or numbers, or UTF-16"
               : NULL;
}
