// Plays the cases of a client: each prints a line, the reply or the error. A case called `refused: …` must end with an error.
export const ASK = [{ role: "user", content: "What is the weather in Turin?" }];
export const PLACE = { type: "object", properties: { place: { type: "string" } }, required: ["place"] };

export async function play(cases) {
  for (const [name, ask] of Object.entries(cases)) {
    try {
      console.log(JSON.stringify({ case: name, reply: JSON.stringify(await ask()) }));
    } catch (error) {
      console.log(JSON.stringify({ case: name, error: String(error) }));
    }
  }
}
