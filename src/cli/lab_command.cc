// `unisono lab` runs the program unisono-lab. This is a separate program, and it may not be installed.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/commands.h"
#include "cli/common/spawn.h"

namespace unisono::cli {
namespace {

constexpr const char* lab_name = "unisono-lab";

const CommandLineText lab_text{.name = "unisono lab",
                               .usage = "unisono lab [WORDS]",
                               .description =
                                   "Runs 'unisono-lab WORDS': studies of methods, by simulation, by closed forms and by "
                                   "measurement.\nThe tool looks for unisono-lab beside this program, then in PATH.",
                               .footer = R"(Examples:
  unisono lab                           what it can do
  unisono lab simulate loss --help

Exit code: that of unisono-lab; 127 if it is not installed, 126 if it cannot be started.)"};

// Tries to run the program that is in the same folder as this one. If there is no such file, tries PATH. Returns only if this
// fails; the result is the errno of the last call.
int become(const Arguments& arguments) {
  std::vector<std::string> words{lab_name};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const auto self = own_executable();
  const auto beside = self.substr(0, self.rfind('/') + 1) + lab_name;
  ::execv(beside.c_str(), pointers.data());
  if (errno != ENOENT) return errno;
  ::execvp(lab_name, pointers.data());
  return errno;
}

}  // namespace

CommandSyntax lab_syntax() { return syntax_of(lab_text, *make_app(lab_text)); }

int run_lab(const Arguments& arguments) {
  const int error = become(arguments);
  if (error == ENOENT) {
    fmt::print(stderr,
               "{}: unisono-lab is not installed: it is neither beside {} nor in PATH.\n"
               "It comes with the package of unisono, and with a build that has not set UNISONO_LAB=OFF.\n",
               lab_text.name, own_executable());
  } else {
    fmt::print(stderr, "{}: cannot start unisono-lab: {}\n", lab_text.name, strerrordesc_np(error));
  }
  return exit_code_of_start_error(error);
}

}  // namespace unisono::cli
