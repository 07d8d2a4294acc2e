/* What both fake libraries share. They do what the file in FAKE_SCRIPT says, line by line "key=value", and write each
   call with the process's number into the file in FAKE_LOG.

   "FUNCTION=code" or "FUNCTION.DEVICE=code" makes a call fail; "crash" ends the process as a broken driver would, "hang"
   never returns. "DEVICE.property=value" describes a device. What is not there has a default. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT 256

static int lookup(const char *key, char *value) {
    char line[1024];
    const char *path = getenv("FAKE_SCRIPT");
    size_t length = strlen(key);
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == '=') {
            snprintf(value, TEXT, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int property(int device, const char *name, char *value) {
    char key[TEXT];
    snprintf(key, sizeof key, "%d.%s", device, name);
    return lookup(key, value);
}

static long number(int device, const char *name, long otherwise) {
    char value[TEXT];
    if (device < 0 ? lookup(name, value) : property(device, name, value)) return strtol(value, NULL, 0);
    return otherwise;
}

/* Write the call down and do what the script says of it: 0 to go on, else the error to return. */
static int enter(const char *function, int device) {
    char text[TEXT], key[TEXT];
    const char *path = getenv("FAKE_LOG");
    int log = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (log >= 0) {
        int size = snprintf(text, sizeof text, "%d %s\n", (int)getpid(), function);
        if (write(log, text, size) != size) abort();
        close(log);
    }
    snprintf(key, sizeof key, "%s.%d", function, device);
    if (!lookup(key, text) && !lookup(function, text)) return 0;
    if (!strcmp(text, "crash")) raise(SIGSEGV);
    if (!strcmp(text, "hang")) for (;;) sleep(1000);
    return atoi(text);
}

#define ENTER(device) do { int code_ = enter(__func__, device); if (code_) return code_; } while (0)
