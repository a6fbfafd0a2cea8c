/* Sliding windows of attention in a config.json. Used by hf.c; see docs/use/hugging-face.md. All functions are pure. */
#ifndef DTD_CLIENT_HF_WINDOW_H
#define DTD_CLIENT_HF_WINDOW_H

#include "client/hf_experts.h"

/* Fills the fields of the window from a config.json; *m has the number of layers. A window that no layer has is none.
 * ERR_UNSUPPORTED: layers that job_model cannot name, or a family whose windows are not supported. */
NODISCARD err_t hf_window_read(const struct hf_llama *f, const json_t *root, struct job_model *m, struct why *why);
/* Whether the family can name the windows of the model. */
bool hf_window_fits(const struct hf_llama *f, const struct job_model *m);
/* Adds them to a config.json. Returns whether there was enough memory. */
bool hf_window_print(const struct hf_llama *f, const struct job_model *m, json_t *config);

#endif
