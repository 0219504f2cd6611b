// Whether the library keeps fixed windows in files, as it does on Linux since they fit the table.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EarrrlStore } from "earrrl";

export const filesFit = (() => {
  try {
    new EarrrlStore({ path: join(mkdtempSync(join(tmpdir(), "earrrl-")), "states") }).init({ windowMs: 1000 });
    return true;
  } catch {
    return false;
  }
})();
