/* Folders of Hugging Face datasets: what save_to_disk wrote, and a builder's cache. Their Arrow files in order. */
#ifndef DTD_COMMON_DATA_DATASETS_H
#define DTD_COMMON_DATA_DATASETS_H

#include "common/base/err.h"

#include <stdbool.h>

/* Whether the folder has a state.json, a dataset_dict.json or a dataset_info.json. */
bool datasets_is_folder(const char *dir);
/* The paths of the Arrow files, in the order of the rows. ERR_BUSY: the folder is being written. ERR_INVALID: it has
 * several splits, or files are missing. ERR_UNSUPPORTED: its rows are chosen by a table of indices. The caller frees
 * the paths and the list. */
NODISCARD err_t datasets_files(const char *dir, char ***ret, int *ret_n, struct why *why);

#endif
