// The program that launcher tests run as ranks: `test_program ACTION [ARGUMENTS]`. Each action imitates one way in which a rank
// may behave.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/concat.h"

namespace {

using Words = std::vector<std::string>;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(none)" : value;
}

bool is_rank(const std::string& rank) { return variable("RANK") == rank; }

void put(const std::string& text, int fd = 1) {
  for (size_t at = 0; at < text.size();) {
    const auto written = ::write(fd, text.data() + at, text.size() - at);
    if (written <= 0) std::exit(90);
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

int show_environment(const Words& names) {
  for (const auto& name : names) put(name + "=" + variable(name.c_str()) + "\n");
  return 0;
}

int show_arguments(const Words& words) {
  for (const auto& word : words) put("<" + word + ">\n");
  return 0;
}

// exit RANK CODE: rank RANK exits with CODE, and the others exit with 0.
int exit_with(const Words& words) { return is_rank(words.at(0)) ? std::atoi(words.at(1).c_str()) : 0; }

// fail RANK CODE: rank RANK exits with CODE, and the others wait for ever.
int fail(const Words& words) {
  if (is_rank(words.at(0))) return std::atoi(words.at(1).c_str());
  put("waiting\n");
  wait_for_ever();
}

// killed RANK SIGNAL: rank RANK kills itself with SIGNAL, and the others wait for ever.
int killed(const Words& words) {
  if (is_rank(words.at(0))) ::raise(std::atoi(words.at(1).c_str()));
  wait_for_ever();
}

// Prints the key that this rank would use, and the variables that could have given one. Then waits for ever.
int show_key(const Words&) {
  char key[65] = {};
  const auto descriptor = variable("UNISONO_KEY_FD");
  const bool has_key = descriptor != "(none)" && ::pread(std::atoi(descriptor.c_str()), key, 64, 0) == 64;
  put(unisono::concat("key ", has_key ? key : "(none)", " text ", variable("UNISONO_KEY"), " file ",
                      variable("UNISONO_KEY_FILE"), " security ", variable("UNISONO_SECURITY"), "\nready\n"));
  wait_for_ever();
}

int hang(const Words&) {
  put(unisono::concat("pid ", ::getpid(), "\nready\n"));
  wait_for_ever();
}

// Prints the name of each signal that arrives. Exits with 7 after SIGINT, SIGTERM, SIGHUP and SIGQUIT. It uses sigwait, because
// the runtime of ThreadSanitizer sometimes delays signal handlers until the next signal.
int catch_signals(const Words&) {
  sigset_t caught;
  ::sigemptyset(&caught);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) ::sigaddset(&caught, number);
  ::sigprocmask(SIG_BLOCK, &caught, nullptr);
  put("ready\n");
  while (true) {
    int number = 0;
    if (::sigwait(&caught, &number) != 0) return 91;
    put(std::string("got ") + sigabbrev_np(number) + "\n");
    if (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT) return 7;
  }
}

// stoppable FIFO: has a child that SIGTSTP stops. A message in the FIFO reports the stop, because the launcher itself may be
// stopped, too.
int stoppable(const Words& words) {
  ::signal(SIGTSTP, SIG_IGN);
  const int fifo = ::open(words.at(0).c_str(), O_WRONLY | O_CLOEXEC);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGTSTP, SIG_DFL);
    put("ready\n");
    wait_for_ever();
  }
  int status = 0;
  if (::waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status)) put("s", fifo);
  if (::waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status)) put("child continued\n");
  wait_for_ever();
}

int ignore_requests(const Words&) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  put(unisono::concat("pid ", ::getpid(), "\nready\n"));
  wait_for_ever();
}

// family [escape]: has a child and a grandchild that wait for ever. With escape, the grandchild is in a session of its own.
int family(const Words& words) {
  const bool escape = !words.empty() && words[0] == "escape";
  if (::fork() == 0) {
    if (::fork() == 0) {
      if (escape) ::setsid();
      put(unisono::concat("pid ", ::getpid(), "\n"));
      wait_for_ever();
    }
    put(unisono::concat("pid ", ::getpid(), "\n"));
    wait_for_ever();
  }
  put(unisono::concat("pid ", ::getpid(), "\n"));
  wait_for_ever();
}

// leave: exits at once, but its child keeps the output open.
int leave(const Words&) {
  const pid_t child = ::fork();
  if (child == 0) wait_for_ever();
  put(unisono::concat("pid ", child, "\n"));  // The parent prints this, because the child may be killed before it could print.
  return 0;
}

// leave-one: rank 0 does the action `leave`, and the others wait for ever.
int leave_one(const Words& words) {
  if (is_rank("0")) return leave(words);
  put("ready\n");
  wait_for_ever();
}

// Prints how this program handles signals. It has inherited that from its parent.
int show_signals(const Words&) {
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < 32; ++number) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) put(std::string("ignored ") + sigabbrev_np(number) + "\n");
    if (sigismember(&blocked, number) == 1) put(std::string("blocked ") + sigabbrev_np(number) + "\n");
  }
  return 0;
}

// lines COUNT: prints numbered lines and writes them in small pieces.
int lines(const Words& words) {
  const int count = std::atoi(words.at(0).c_str());
  for (int i = 0; i < count; ++i) {
    put("rank " + variable("RANK"));
    put(unisono::concat(" line ", i));
    put(" end\n");
  }
  return 0;
}

int long_line(const Words& words) {
  put(std::string(static_cast<size_t>(std::atoi(words.at(0).c_str())),
                  static_cast<char>('a' + std::atoi(variable("RANK").c_str()))) +
      "\n");
  return 0;
}

int binary(const Words&) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  put(bytes + "\n");
  return 0;
}

int partial(const Words&) {
  put("out without end");
  put("error without end", 2);
  return 0;
}

int progress(const Words&) {
  for (int i = 0; i <= 100; i += 20) put(unisono::concat("\rstep ", i));
  put("\rcomplete\n");
  return 0;
}

int show_parent(const Words&) {
  put(unisono::concat("pid ", ::getpid(), "\n"));
  put(unisono::concat("parent of ", variable("RANK"), " is ", ::getppid(), "\n"));
  wait_for_ever();
}

// family-parent: does the same as the action of show_parent, but has a child that would outlive this process.
int show_parent_with_child(const Words& words) {
  if (::fork() == 0) {
    put(unisono::concat("pid ", ::getpid(), "\n"));
    wait_for_ever();
  }
  return show_parent(words);
}

int endless(const Words&) {
  while (true) put("and on and on and on and on and on and on and on\n");
}

// fake-ssh [-o OPTION]... HOST COMMAND...: imitates ssh and sshd on this machine. Some hosts behave in a special way:
// "unreachable" is down, "silent" never answers, "chatty" prints a text at login, and "bare" does not have the tool.
int fake_ssh(const Words& words) {
  size_t at = 0;
  while (at + 1 < words.size() && words[at] == "-o") at += 2;
  const auto host = words.at(at++);
  std::string command;
  for (; at < words.size(); ++at) command += (command.empty() ? "" : " ") + words[at];
  if (host == "unreachable") {
    put("ssh: connect to host unreachable port 22: No route to host\n", 2);
    return 255;
  }
  if (host == "silent") wait_for_ever();
  if (host == "chatty") put("Welcome!\nYou have mail.\n");
  if (host == "bare") command = "exec /nonexistent/unisono agent";
  ::setenv("FAKE_HOST", host.c_str(), 1);
  ::unsetenv("FROM_LAUNCHER");
  // Run the command in another process, as a real sshd does, so that a signal to this process does not reach it.
  const pid_t login = ::fork();
  if (login == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(98);
  }
  int status = 0;
  ::waitpid(login, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(const Words&)>> actions{{"environment", show_environment},
                                                                        {"arguments", show_arguments},
                                                                        {"exit", exit_with},
                                                                        {"fail", fail},
                                                                        {"killed", killed},
                                                                        {"hang", hang},
                                                                        {"show-key", show_key},
                                                                        {"catch", catch_signals},
                                                                        {"ignore", ignore_requests},
                                                                        {"stoppable", stoppable},
                                                                        {"family", family},
                                                                        {"leave", leave},
                                                                        {"leave-one", leave_one},
                                                                        {"signals", show_signals},
                                                                        {"lines", lines},
                                                                        {"long-line", long_line},
                                                                        {"binary", binary},
                                                                        {"partial", partial},
                                                                        {"progress", progress},
                                                                        {"endless", endless},
                                                                        {"parent", show_parent},
                                                                        {"family-parent", show_parent_with_child},
                                                                        {"fake-ssh", fake_ssh}};
  const auto action = argc > 1 ? actions.find(argv[1]) : actions.end();
  if (action == actions.end()) return 97;
  return action->second(Words(argv + 2, argv + argc));
}
