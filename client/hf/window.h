/* Sliding windows of attention in a config.json (enum hf_window). Used by llama.c; see docs/use/hugging-face.md. All
 * functions are pure. */
#ifndef DTD_CLIENT_HF_WINDOW_H
#define DTD_CLIENT_HF_WINDOW_H

#include "client/hf/llama.h"

/* Fills the fields of the window; *m has the number of layers. `sliding`, of as many elements, gets the layers with
 * windows. If the keys of the model cannot name these layers, the model gets no window where that is the same, in
 * sequences of `positions` tokens, else ERR_UNSUPPORTED. */
NODISCARD err_t hf_window_read(const struct hf_config *c, const struct hf_llama *f, int64_t positions,
                               struct job_model *m, bool *sliding);
/* Whether some layer of the model has a window. */
bool hf_window_any(const struct job_model *m);
/* Whether config.json of the family can name the windows of the model. */
bool hf_window_fits(const struct hf_llama *f, const struct job_model *m);
/* Adds them to a config.json. Returns whether there was enough memory. */
bool hf_window_print(const struct hf_llama *f, const struct job_model *m, int64_t positions, json_t *config);

#endif
