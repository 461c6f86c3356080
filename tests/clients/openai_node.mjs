// openai-node.
import OpenAI from "openai";
import { play, ASK, PLACE } from "./played.mjs";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const tool = { type: "function", function: { name: "weather", parameters: PLACE } };
const chat = (fields = {}) => client.chat.completions.create({ model: "m", messages: ASK, ...fields });
const all = async (stream) => {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
};

await play({
  chat: () => chat(),
  stream: () => all(chat({ stream: true, stream_options: { include_usage: true } })),
  n: () => chat({ n: 2 }),
  tool: () => chat({ tools: [tool] }),
  "tool loop": async () => {
    const { message } = (await chat({ tools: [tool] })).choices[0];
    const output = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "rain" };
    return chat({ tools: [tool], messages: [...ASK, message, output] });
  },
  "runTools": () => client.chat.completions.runTools({
    model: "m", messages: ASK,
    tools: [{ type: "function", function: { name: "weather", parameters: PLACE, parse: JSON.parse, function: () => "rain" } }],
  }).finalContent(),
  schema: () => chat({ response_format: { type: "json_schema", json_schema: { name: "place", schema: PLACE } } }),
  response: () => client.responses.create({ model: "m", input: "Hello" }),
  "response, streamed": () => all(client.responses.create({ model: "m", input: "Hello", stream: true })),
  "response stream helper": async () => (await client.responses.stream({ model: "m", input: "Hello" }).finalResponse()).output_text,
  embeddings: () => client.embeddings.create({ model: "m", input: ["a tomato"] }),
  models: async () => (await client.models.list()).data.map((model) => model.id),
  model: () => client.models.retrieve("gpt-x"),
  "refused: moderations": () => client.moderations.create({ input: "x" }),
});
