// A child made by fork() is no peer of its parent's elastic run.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "unisono/elastic.h"

namespace unisono {
namespace {

TEST(ElasticRunFork, every_call_of_a_child_is_refused_and_the_parent_is_unharmed) {
  ElasticOptions options;
  options.run_id = "fork-test";
  options.found = true;
  options.tensor_elements = {100};
  options.interface = "127.0.0.1";
  auto run = Elastic::join(options);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  std::vector<float> values(100, 1.0F);
  const std::span<float> tensor(values);
  const auto begin = concat("this process was forked from a member (pid ", ::getpid(), "), and is none itself");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // ends a child that hangs
    const auto refused = [&](const Status& status) {
      return status.code() == Code::invalid && status.message().starts_with(begin);
    };
    bool right = refused(run->average(tensor).status()) && refused(run->average_async({tensor}).status()) &&
                 refused(run->offer_values(std::vector<std::span<float>>{tensor})) && refused(run->set_state({})) &&
                 refused(run->group().status()) && refused(run->leave()) && !run->ready(Milliseconds(1));
    static_cast<void>(run->status());
    const auto gone = std::make_unique<Elastic>(std::move(*run));  // its destructor must do nothing
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const auto report = run->average(tensor);
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(run->leave().ok());
}

}  // namespace
}  // namespace unisono
