// Device code of the benches, embedded by the build where there is an nvcc (CCKS_HAVE_CUDA).
#pragma once

extern "C" {
extern const unsigned char ccks_image_empty_worker[];  // kernel `ccks_worker` whose ops do nothing
extern const unsigned char ccks_image_graph_worker[];  // kernel `ccks_worker` over test::GraphOps
extern const unsigned char ccks_image_graph_worker_end[];
extern const unsigned char ccks_image_handoff_worker[];  // the same without ready queues, and machine code alone
extern const unsigned char ccks_image_handoff_worker_end[];
extern const unsigned char ccks_image_graph_loop[];    // the same with bodies as an image of their own: kernel `ccks_worker`
extern const unsigned char ccks_image_graph_bodies[];  // and these
extern const unsigned char ccks_image_graph_bodies_end[];
extern const unsigned char ccks_image_ping_pong[];     // kernel `ccks_ping_pong`
extern const unsigned char ccks_image_stamp_worker[];  // kernel `ccks_worker` whose ops write down when they ran
}
