// What the tests share.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Returns the path of a directory that does not exist yet, in a new one. */
export function newPath() {
  return join(mkdtempSync(join(tmpdir(), "earrrl-")), "states");
}
