/* Constants of the zip format (APPNOTE 6.3), for reader and writer. */
#ifndef DTD_COMMON_CKPT_ZIP_FORMAT_H
#define DTD_COMMON_CKPT_ZIP_FORMAT_H

#define ZIP_LOCAL_SIG 0x04034b50u
#define ZIP_CENTRAL_SIG 0x02014b50u
#define ZIP_END_SIG 0x06054b50u
#define ZIP_END64_SIG 0x06064b50u
#define ZIP_LOCATOR_SIG 0x07064b50u

#define ZIP_LOCAL_BYTES 30
#define ZIP_CENTRAL_BYTES 46
#define ZIP_END_BYTES 22
#define ZIP_END64_BYTES 56
#define ZIP_LOCATOR_BYTES 20

#define ZIP_FLAG_DESCRIPTOR 0x0008 /* sizes and CRC come after the payload */
#define ZIP_FLAG_UTF8 0x0800
#define ZIP_EXTRA_64 0x0001
#define ZIP_EXTRA_PAD 0x4246 /* "FB": torch's padding */
#define ZIP_SATURATED 0xffffffffu
#define ZIP_ROOT "archive/"

#endif
