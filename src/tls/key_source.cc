#include "tls/key_source.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/concat.h"
#include "base/error_text.h"

namespace unisono {
namespace {

// A key has 64 digits. A file may have white space around them, but not much more.
constexpr size_t file_bytes_max = 256;

Result<std::optional<SecretKey>> read_key(int descriptor, const std::string& what) {
  std::array<char, file_bytes_max + 1> text;
  ssize_t count = 0;
  do count = ::pread(descriptor, text.data(), text.size(), 0);
  while (count < 0 && errno == EINTR);
  if (count < 0) return Status(Code::unavailable, concat(what, " cannot be read: ", error_text(errno)));
  auto key = SecretKey::from_hex({text.data(), static_cast<size_t>(count)});
  sodium_memzero(text.data(), text.size());
  if (!key.ok()) return Status(key.status().code(), concat(what, ": ", key.status().message()));
  return std::optional(std::move(*key));
}

Result<std::optional<SecretKey>> read_key_file(const std::string& path, const std::string& what) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file < 0) return Status(Code::unavailable, concat(what, " cannot be opened: ", error_text(errno)));
  struct stat facts {};
  const bool known = ::fstat(file, &facts) == 0;
  Result<std::optional<SecretKey>> key = Status(Code::unavailable, concat(what, " cannot be read"));
  if (known && !S_ISREG(facts.st_mode)) {
    key = Status(Code::invalid, concat(what, " is not a file"));
  } else if (known && (facts.st_mode & S_IRWXO) != 0) {
    key =
        Status(Code::invalid, concat(what, " can be read or written by all users of this host, so it is no secret: chmod 600 ",
                                     path, ", and make a new key (unisono key)"));
  } else if (known) {
    key = read_key(file, what);
  }
  ::close(file);
  return key;
}

}  // namespace

Result<std::optional<SecretKey>> load_key(const KeySource& source) {
  if (source.key) return source.key;
  // A user may give the digits where a path belongs. An error that names the path would show them.
  if (SecretKey::from_hex(source.file).ok())
    return Status(Code::invalid, concat(source.name, " is the key itself; needed: the path of a file that contains it"));
  if (!source.file.empty()) return read_key_file(source.file, concat(source.name, ": ", source.file));
  if (source.descriptor >= 0) {
    auto key = read_key(source.descriptor, concat(source.name, ": the descriptor ", source.descriptor));
    if (key.ok()) return key;
    return Status(key.status().code(),
                  concat(key.status().message(), ". A program between the launcher and this process may have closed it, as ",
                         "Python's subprocess does without close_fds=False"));
  }
  return std::optional<SecretKey>();
}

int make_key_descriptor(const SecretKey& key) {
  const int descriptor = ::memfd_create("unisono key", 0);
  if (descriptor < 0) return -1;
  auto text = key.hex();
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  sodium_memzero(text.data(), text.size());
  if (written) return descriptor;
  ::close(descriptor);
  return -1;
}

}  // namespace unisono
