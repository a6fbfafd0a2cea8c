/* --damage: while a computer is switched off, one of control's files on it changes (saved.h): a bit, its end, all of
 * it, or it is an older one again. Control must refuse to start, by the name of the file, or read what was written. */
#ifndef DTD_TESTS_SIM_CONTROL_DAMAGE_H
#define DTD_TESTS_SIM_CONTROL_DAMAGE_H

void damage_start(void);
/* No more damage; the user repairs what is left, and takes nodes in anew that do not vote any more. */
void damage_end(void);

#endif
