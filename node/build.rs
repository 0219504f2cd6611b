//! Sets the linker's options for a module of Node.

fn main() {
    napi_build::setup();
}
